"""Row changes between the WAL and a destination: columnar tuples, their net effect, typed values, batches."""
