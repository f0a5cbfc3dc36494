"""The Delta Lake destination: data files in an object store or a folder, and a log that lists a table's files."""

from airflow_provider_pgetl.engine.destinations.delta.destination import DeltaDestination

__all__ = ["DeltaDestination"]
