"""The demo's DAG files, one for each destination."""
