"""PostgreSQL as a source: connecting, preflight, publications, slots, catalog, snapshot ranges."""
