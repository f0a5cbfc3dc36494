"""A shop that trades, its replica, and Airflow in between, on this machine: ``python -m airflow_provider_pgetl.demo``.

shop · trade          the source, and the load that never stops writing
destinations          where it is replicated to, and how the two are compared
looking · drawing     what is to be seen of it, and how it is shown
demonstration         the demo itself
"""
