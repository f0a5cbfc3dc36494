"""Triggers: what waits and supervises in a triggerer, without holding a worker slot."""
