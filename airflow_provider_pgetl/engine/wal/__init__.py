"""The WAL as a stream of changes: pgoutput messages, their decoder, the replication connection, batches."""
