"""Sessions on any PostgreSQL server: what they are pinned to, what their errors mean, the COPY format."""
