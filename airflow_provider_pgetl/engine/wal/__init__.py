"""The write-ahead log as a stream of changes: pgoutput messages, their decoder, the connection."""
