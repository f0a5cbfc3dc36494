"""Row changes on their way from the WAL to a destination: columnar pointers, their net effect, batches."""
