"""PostgreSQL as a destination."""
