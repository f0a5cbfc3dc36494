"""Declarations: what a person declares of a pipeline, how it is validated, read from TOML, and kept free of secrets."""
