"""The streaming worker: its threads, the core of a stream, the two roles, the store thread, the lease."""
