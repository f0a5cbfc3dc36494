"""Random plans of tables, transactions, ALTERs and failing servers, run against real servers.

`python -m tests.edges --seed N` runs one plan; `--show` prints it; `--steps M` runs only its beginning; `--skip 3,7-12`
leaves steps out. `make edges N=20` runs twenty seeds.

values    types, and SQL expressions of their values
tables    a drawn table, as the generator knows it while it draws
changes   drawn INSERTs, UPDATEs, DELETEs and TRUNCATEs
alters    drawn ALTERs, each with the reasons for which it may make its table Errored
plan      the steps of a seed: a pure function of it
pipeline  the worker, its file and its state
world     three servers; carries a plan out, and checks what comes of it
running   a world is opened for a plan; a failure says how to have it again
"""
