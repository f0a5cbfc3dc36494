"""Servers on this machine, for the demo and for the tests: PostgreSQL and Airflow, as real processes.

None outlives the process that started it, in whichever way that ended. Production code does not import this package: it
needs libraries that only a development environment has.
"""
