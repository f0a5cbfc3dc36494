"""One table's Delta log: its actions, its snapshot, the object store in which it lies."""
