"""Real PostgreSQL servers for the tests: those of the package, under the name by which the tests ask for them."""

from airflow_provider_pgetl.testing.servers.installations import Account, Installation, ServerError, installations
from airflow_provider_pgetl.testing.servers.postgres_servers import PASSWORD, Database, Databases, Server, StopMode

__all__ = [
    "PASSWORD",
    "Account",
    "Database",
    "Databases",
    "Installation",
    "Server",
    "ServerError",
    "StopMode",
    "installations",
]
