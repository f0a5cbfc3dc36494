"""The statements of the Postgres store, one module per thing stored.

Functions of a connection, whose transaction is the caller's: nothing here opens, commits, caches or retries.

Order of locks, everywhere: rows of `tables` in the order of their names, then the row of `pipelines`.
"""
