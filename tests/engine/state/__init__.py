"""The stores: one suite for both, then what only Postgres can do."""
