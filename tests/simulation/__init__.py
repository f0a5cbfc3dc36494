"""The whole protocol under a seeded scheduler: no socket, no clock but ours, and one thread at a time.

Everything that ships runs as it is: the runs with their pools of copies, prepare's judgement of gaps, the streaming
worker with its threads, the streams' cores, the copies' drivers, upkeep, rollbacks and resets, the store and the
destination in memory with their fencing. It runs on a `Runtime` whose threads take turns and whose time is the
schedule's, and reaches its servers by clients whose requests go astray. Modelled are the source (WAL, slots, walsenders
that send pgoutput's own bytes, snapshots), people, and everything that can go wrong: answers lost, doubled or late,
outages, crashes between any two steps, pauses in which a lease ends, lost slots, restored servers.

| module | holds |
|---|---|
| `threads` | the runtime: threads, flags, queues, and how a process dies |
| `source` | the WAL and who remembers it: transactions, slots, walsenders, snapshots |
| `servers` | a process's ways to the source |
| `store`, `destination` | the real ones, watched (what was superseded must change nothing), and the ways to them |
| `world` | the clock, the servers, the network, the processes |
| `processes`, `people` | what runs, and who acts on it from outside |
| `invariants` | what must hold after each step, and at the end |
| `worlds` | what may happen in a schedule: drawn from its seed, or leaning towards one hard place |
| `schedule` | making, replaying and shrinking a schedule |

A step of a schedule is (who acts, seed, calm): whatever is drawn in that step comes from the seed alone, so that
leaving steps out changes nothing in the others. That is how a failing schedule is shrunk. A thread's step goes on until
it waits, asks a server, or, now and then, hands something to another thread.
"""
