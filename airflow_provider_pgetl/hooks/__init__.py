"""The hook of connections to a source, and of what is replicated from there."""
