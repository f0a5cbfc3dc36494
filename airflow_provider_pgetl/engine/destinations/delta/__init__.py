"""Delta Lake: files in an object store or a folder, and a log that says which of them are the table."""

from airflow_provider_pgetl.engine.destinations.delta.destination import DeltaDestination

__all__ = ["DeltaDestination"]
