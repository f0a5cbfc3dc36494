"""A shop with a steady load, its replica, and Airflow, all on this machine: ``pgetl demo``.

The modules:

    shop            the source, and the load that never stops writing
    destinations    where it is replicated to, and how the two are compared
    asking          an example query, for each kind of destination
    observing       the state of the replication, and how it is displayed
    demonstration   the demo itself, with its display, signals and exit code
"""
