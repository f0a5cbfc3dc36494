"""Verification: compares tables of the destination with the source at one consistent point, while both are written
to."""
