"""Names of tables as OpenLineage's specification defines them, so that they equal those that other tools report.

A Postgres table is ``postgres://host:port`` and ``database.schema.table``; a Delta table is its bucket, container or
file system, and the path of its folder. A table that has no such name (in a custom destination) is named by the
pipeline: ``pgetl://<pipeline>`` and ``schema.table``, which is also how the asset of every replica is named.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urlsplit

from airflow_provider_pgetl.engine.model.tables import TableName

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_pgetl.declarations import Replication

_POSTGRES_PORT = 5432
# The schemes that delta-rs accepts for each store; the specification has one scheme for each.
_S3, _GOOGLE = ("s3", "s3a"), ("gs", "gcs")
_AZURE = ("abfs", "abfss", "adl", "az", "azure")
_AZURE_SITES = (".blob.core.windows.net", ".dfs.core.windows.net")
_ACCOUNT = ("azure_storage_account_name", "account_name")


class DatasetName(NamedTuple):
    namespace: str
    name: str


def postgres_table(connection: Connection, table: TableName) -> DatasetName:
    """Returns the name of a Postgres table. For a connection without a database it takes the database that is named
    like the role, as libpq does; of several hosts it takes the first, and for a socket localhost."""
    host = (connection.host or "").split(",")[0]
    if not host or host.startswith("/"):
        host = "localhost"
    elif ":" in host and not host.startswith("["):
        host = f"[{host}]"
    database = connection.schema or connection.login or ""
    return DatasetName(f"postgres://{host}:{connection.port or _POSTGRES_PORT}", f"{database}.{table}")


def folder(uri: str, account: str | None = None) -> DatasetName:
    """Returns the name of a folder of a file system or an object store. `account`: the account of Azure, for an address
    that does not name it. The user part of the address is dropped, but for the container that some addresses have
    there."""
    if "://" not in uri:
        return DatasetName("file", f"/{uri.strip('/')}")
    parts = urlsplit(uri)
    host = parts.hostname or ""
    path = parts.path.strip("/")
    if parts.scheme in _S3:
        return DatasetName(f"s3://{host}", path)
    if parts.scheme in _GOOGLE:
        return DatasetName(f"gs://{host}", path)
    if parts.scheme in _AZURE or host.endswith(_AZURE_SITES):
        return _azure(parts, path, account)
    place = host if parts.port is None else f"{host}:{parts.port}"
    return DatasetName(f"{parts.scheme}://{place}", path)


def _azure(parts: SplitResult, path: str, account: str | None) -> DatasetName:
    """Handles ``container@account…``, the account as host and the container first in the path, and the container as
    host."""
    host = (parts.hostname or "").replace(".blob.", ".dfs.", 1)
    container = parts.username or ""
    if not container and "." in host:
        container, _, path = path.partition("/")
    if not container:
        container, host = host, "" if account is None else f"{account}.dfs.core.windows.net"
    if not host:
        return DatasetName(f"{parts.scheme}://{container}", path)
    return DatasetName(f"abfss://{container}@{host}", path)


def replica(pipeline: str, table: TableName) -> DatasetName:
    """Returns the name of a replica by its pipeline, independent of the destination."""
    return DatasetName(f"pgetl://{pipeline}", str(table))


class Datasets:
    """The names of a pipeline's tables. Connections are looked up when they are first needed, each once."""

    def __init__(self, replication: Replication) -> None:
        self._replication = replication

    def source(self, table: TableName) -> DatasetName:
        return postgres_table(self._source, table)

    def replica(self, table: TableName) -> DatasetName:
        """Returns the name of the replica in the destination."""
        place = self._replication.place(table)
        kind = self._replication.spec.destination.type
        if kind == "postgres":
            return postgres_table(self._destination, place)
        if kind == "delta":
            return self._lake_table(place)
        return replica(self._replication.spec.id, table)

    @cached_property
    def _source(self) -> Connection:
        return _connection(self._replication.connections.source)

    @cached_property
    def _destination(self) -> Connection:
        conn_id = self._replication.connections.destination
        assert conn_id is not None, "a Postgres has one"
        return _connection(conn_id)

    def _lake_table(self, place: TableName) -> DatasetName:
        uri, account = self._lake
        return folder(f"{uri.rstrip('/')}/{self._replication.spec.destination.kind.folder(place)}", account)

    @cached_property
    def _lake(self) -> tuple[str, str | None]:
        """The lake's address, and Azure's account. No other storage option is read."""
        from airflow_provider_pgetl.connections import STORAGE, value
        from airflow_provider_pgetl.engine.config.secrets import resolve

        spec, conn_id = self._replication.spec.destination, self._replication.connections.storage
        known = {**os.environ, **({} if conn_id is None else {STORAGE: value(STORAGE, conn_id)})}
        storage: Mapping[str, str] = spec.kind.resolved(spec.options, known).get("storage", {})
        told = {name.lower(): value for name, value in {**os.environ, **storage}.items()}
        account = next((told[name] for name in _ACCOUNT if told.get(name)), None)
        return resolve(spec.uri or "", known), account


def _connection(conn_id: str) -> Connection:
    from airflow.sdk import BaseHook

    return BaseHook.get_connection(conn_id)
