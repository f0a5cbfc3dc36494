"""The whole protocol under a seeded scheduler: one thread, no socket, no clock but ours.

Real are the streams' pure core, the phases, upkeep, the store and the destination in memory with their fencing.
Modelled are the source (WAL, slots, walsenders, snapshots), the threads of a worker, the copy's driver, people, and
everything that can go wrong between them: answers lost, doubled or late, outages, crashes between any two steps, pauses
in which a lease ends, lost slots.

| module | holds |
|---|---|
| `source` | the WAL and who remembers it: transactions, slots, walsenders, snapshots |
| `store`, `destination` | the real ones, watched: what was superseded must change nothing |
| `world` | the clock, the servers, the network, the actors |
| `streams`, `worker`, `copies`, `people` | the actors |
| `invariants` | what must hold after each step, and at the end |
| `schedule` | making, replaying and shrinking a schedule |

An actor is a generator; everything between two `yield`s happens at once. A step of a schedule is (actor, seed, calm):
whatever the actor draws in that step comes from the seed alone, so that leaving steps out changes nothing in the
others. That is how a failing schedule is shrunk.
"""
