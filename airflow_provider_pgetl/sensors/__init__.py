"""Sensors: they read the pipeline's store, are deferrable, and occupy no worker slot while they wait."""
