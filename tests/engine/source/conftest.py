"""Sessions as the engine itself opens them."""

from collections.abc import Iterator

import pytest
from psycopg import pq, sql

from airflow_provider_pgetl.engine.source.connecting import Connection, connect, connect_replication
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases, Server


@pytest.fixture
def source(databases: Databases) -> Database:
    return databases.source


@pytest.fixture
def connection(source: Database) -> Iterator[Connection]:
    with connect(source.uri, "pgetl test reader") as connection:
        yield connection


@pytest.fixture
def replication(source: Database) -> Iterator[pq.abc.PGconn]:
    pgconn = connect_replication(source.uri, "pgetl test exporter")
    yield pgconn
    pgconn.finish()


@pytest.fixture
def stranger(source: Database) -> Iterator[str]:
    """The URI of a role that may connect and nothing else."""
    name = f"stranger_{source.name}"
    source.execute(f"create role {name} login password 'p'")
    yield source.server.uri(source.name, name, "p")
    drop_role(source.server, source.name, name)


def drop_role(server: Server, database: str, name: str) -> None:
    with server.connect(database) as connection:
        for statement in ("drop owned by {} cascade", "drop role {}"):
            connection.execute(sql.SQL(statement).format(sql.Identifier(name)))
