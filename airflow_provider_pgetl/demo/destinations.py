"""The destinations of the demo. Another destination is another class here, and a DAG file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from airflow_provider_pgetl import declarations
from airflow_provider_pgetl.connections import DESTINATION
from airflow_provider_pgetl.declarations import DestinationDeclaration
from airflow_provider_pgetl.demo.asking import ShownAnswer, ask_lake, ask_postgres
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing import comparing
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server

LAKE = "PGETL_DEMO_LAKE"


class DemoDestination(Protocol):
    """One of the demo's destinations, with its server running."""

    @property
    def dag_id(self) -> str:
        """The DAG that replicates into it; its file in `dags` has the same name."""

    @property
    def declaration(self) -> DestinationDeclaration:
        """The declaration in that DAG file."""

    @property
    def connections(self) -> Mapping[str, str]:
        """The Airflow connections that the DAG names, for this destination alone."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The values of the declaration's references."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Environment variables that the DAG file reads."""

    @property
    def place(self) -> str:
        """The address or path that is shown to the user."""

    def count(self, table: TableName) -> int | None:
        """Returns the number of rows of a table; None while it does not exist."""

    def differences(self, source: Database, tables: tuple[TableName, ...]) -> list[str]:
        """Returns a text for each table that is not equal to the source's, value by value."""

    def ask(self) -> ShownAnswer:
        """Returns the replica's answer to the example query."""


class DemoPostgres:
    """A database of another server, of another major version."""

    dag_id = "shop_to_postgres"
    declaration = declarations.Postgres("replica_db")
    settings: Mapping[str, str] = MappingProxyType({})

    def __init__(self, server: Server, _folder: Path) -> None:
        self._database = server.create_database("replica")

    @property
    def connections(self) -> Mapping[str, str]:
        return {self.declaration.conn_id: self._database.uri}

    @property
    def environment(self) -> Mapping[str, str]:
        return {DESTINATION: self._database.uri}

    @property
    def place(self) -> str:
        return self._database.uri

    def count(self, table: TableName) -> int | None:
        with self._database.connect() as session:
            return comparing.count(session, table)

    def differences(self, source: Database, tables: tuple[TableName, ...]) -> list[str]:
        with source.connect() as here, self._database.connect() as there:
            return comparing.differences(here, there, tables)

    def ask(self) -> ShownAnswer:
        with self._database.connect() as session:
            return ask_postgres(session)


class DemoDeltaLake:
    """A folder of Delta tables."""

    dag_id = "shop_to_delta"
    connections: Mapping[str, str] = MappingProxyType({})
    environment: Mapping[str, str] = MappingProxyType({})

    def __init__(self, _server: Server, folder: Path) -> None:
        self._folder = folder

    @property
    def declaration(self) -> DestinationDeclaration:
        return declarations.DeltaLake(str(self._folder))

    @property
    def settings(self) -> Mapping[str, str]:
        return {LAKE: str(self._folder)}

    @property
    def place(self) -> str:
        return str(self._folder)

    def count(self, table: TableName) -> int | None:
        return comparing.count_in_delta(self._place(table))

    def differences(self, source: Database, tables: tuple[TableName, ...]) -> list[str]:
        with source.connect() as session:
            found = (comparing.difference_in_delta(session, table, self._place(table)) for table in tables)
            return [text for text in found if text]

    def ask(self) -> ShownAnswer:
        return ask_lake({name: self._place(TableName("public", name)) for name in ("orders", "payments")})

    def _place(self, table: TableName) -> Path:
        return self._folder / table.schema / table.name


OpenDestination = Callable[[Server, Path], DemoDestination]

# By the name that `--destination` accepts. Each is given a server on which to create a database, and a folder for
# files.
DESTINATIONS: Mapping[str, OpenDestination] = {
    "delta": DemoDeltaLake,
    "postgres": DemoPostgres,
}
