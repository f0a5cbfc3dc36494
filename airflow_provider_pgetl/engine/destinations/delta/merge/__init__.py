"""Merges net changes into a Delta table: by rewriting files, by deletion vectors, or after landing."""
