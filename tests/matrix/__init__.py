"""What runs with what: releases of Airflow, Pythons, executors, and databases for Airflow's own use. `make matrix`.

Not every combination: the newest release with every Python, executor and database once, the older ones with what they
are mostly run with. For each the unit tests run in an environment of its own, and then the real thing:
`tests/processes` with all of Airflow's processes, as far as it is not slow or is marked `matrix`.

cells         the combinations
environments  an environment for each release and Python, from pinned versions, kept in `.matrix`
running       one cell: its tests, and what came of them

`python -m tests.matrix --only 3.1 --only celery` runs the cells that have both in their names. What a cell lacks on
this machine (an interpreter) is named in the table at the end; only what has failed makes the whole fail.
"""
