"""Triggers: they wait and supervise in a triggerer, without occupying a worker slot."""
