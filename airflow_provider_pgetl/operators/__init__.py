"""The tasks of a replication: each resolves connections, calls one verb of the engine, and reports how it ended."""
