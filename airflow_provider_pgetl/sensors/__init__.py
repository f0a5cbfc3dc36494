"""Sensors: on the store, deferrable, and holding no worker slot."""
