"""Data files of a Delta table: writing, reading, finding rows by key, deletion vectors."""
