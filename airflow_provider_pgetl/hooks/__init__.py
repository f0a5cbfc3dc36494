"""The hook for connections to a source, and for the pipelines that replicate from it."""
