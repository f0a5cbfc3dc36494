"""Net changes merged into a Delta table: by rewriting, by deletion vectors, or after landing."""
