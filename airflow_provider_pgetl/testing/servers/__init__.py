"""Servers on this machine, for the demo and for the tests: PostgreSQL and Airflow, as real processes.

None outlives the process that started it, however that one ended. Nothing of a pipeline at work imports this package:
it needs what only a developer's environment holds.
"""
