"""The Delta log of a table: its actions, its snapshots, and the object store that holds it."""
