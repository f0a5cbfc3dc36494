"""Merging what has landed, elsewhere than in the worker: its job, its driver, and where its tasks run."""
