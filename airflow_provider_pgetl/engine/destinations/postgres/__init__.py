"""PostgreSQL as a destination."""

from airflow_provider_pgetl.engine.destinations.postgres.destination import PostgresDestination

__all__ = ["PostgresDestination"]
