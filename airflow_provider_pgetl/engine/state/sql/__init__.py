"""The statements of the Postgres store, in one module each for the pipeline's row, the tables, and reading the cache.

The functions take a connection, whose transaction belongs to the caller: none of them opens, commits, caches or
retries.

The order of locks is the same everywhere: rows of `table_states` in the order of their names, then the row of
`pipelines`.
"""
