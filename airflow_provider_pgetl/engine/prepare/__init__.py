"""Preparation before a run: the declaration is checked against source, store and destination, and these are made to
match it, or the run is refused."""
