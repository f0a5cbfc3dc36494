"""The streaming worker: its threads, the core of a stream, the two roles of a core, the store thread, the lease."""
