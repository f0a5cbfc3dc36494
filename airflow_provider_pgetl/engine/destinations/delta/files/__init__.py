"""A Delta table's data files: written, read, looked up by key, rows marked as deleted."""
