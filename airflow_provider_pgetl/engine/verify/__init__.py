"""Proof that a table of the destination is what the source has: compared at one consistent point, without a pause."""
