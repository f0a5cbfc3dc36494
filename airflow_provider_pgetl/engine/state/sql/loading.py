"""Reading what a store object caches, in one snapshot: all of it, or what has changed since it was last read."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from sqlalchemy import ColumnElement, Connection, Select, Text, cast, select

from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state import schema
from airflow_provider_pgetl.engine.state.schema import (
    changes,
    destination_tables,
    history,
    pipelines,
    table_schemas,
    tables,
)
from airflow_provider_pgetl.engine.state.sql.pipelines import channel, incarnation, seconds
from airflow_provider_pgetl.engine.state.store import DestinationMetadata, HistoryEntry, TableRecord
from airflow_provider_pgetl.engine.state.view import StoredVersions, Versions, View

V = TypeVar("V")

_IS_CURRENT = (
    (history.c.pipeline == tables.c.pipeline)
    & (history.c.table_schema == tables.c.table_schema)
    & (history.c.table_name == tables.c.table_name)
    & (history.c.entry == tables.c.current)
)
_STATE = (history.c.generation, history.c.attempt, history.c.copied, history.c.phase)


def head(connection: Connection, pipeline: int) -> Any:
    """Returns the pipeline's row, with the incarnation of the tables that it was read from; None if it has been
    destroyed."""
    return connection.execute(select(pipelines, incarnation()).where(pipelines.c.key == pipeline)).first()


def view(connection: Connection, pipeline: int, row: Any) -> View:
    """Returns the whole view. Requires a transaction of isolation level repeatable read, in which `row` was read by
    `head`."""
    return View(
        schema.pipeline_of(row),
        row.revision,
        row.changes,
        {record.table: record for record in records(connection, pipeline)},
        _schemas(connection, table_schemas.c.pipeline == pipeline),
        _destinations(connection, destination_tables.c.pipeline == pipeline),
    )


def brought_up(connection: Connection, pipeline: int, row: Any, known: View) -> tuple[View, Collection[TableName]]:
    """Returns `known` with all changes since, and the tables that they concern. Has the same requirements as `view`."""
    columns = (changes.c.table_schema, changes.c.table_name, changes.c.described)
    query = select(*columns).where(changes.c.pipeline == pipeline, changes.c.change > known.change)
    found = {schema.name_of(one): one.described > known.change for one in connection.execute(query)}
    described = [name for name, is_described in found.items() if is_described]
    now = {record.table: record for record in records(connection, pipeline, found)} if found else {}
    schemas: Mapping[TableName, Versions] = {}
    places: Mapping[TableName, DestinationMetadata] = {}
    if described:
        schemas = _schemas(connection, schema.of_tables(table_schemas, pipeline, described))
        places = _destinations(connection, schema.of_tables(destination_tables, pipeline, described))
    brought = replace(
        known,
        pipeline=schema.pipeline_of(row),
        revision=row.revision,
        change=row.changes,
        tables=_exchanged(known.tables, found, now),
        schemas=_exchanged(known.schemas, described, schemas),
        destinations=_exchanged(known.destinations, described, places),
    )
    return brought, found.keys()


def _exchanged(
    known: Mapping[TableName, V], names: Collection[TableName], now: Mapping[TableName, V]
) -> Mapping[TableName, V]:
    """Returns `known` with the entries of these tables replaced by those of `now`, or removed where `now` has none."""
    if not names:
        return known
    exchanged = {**known, **now}
    for name in set(names) - now.keys():
        exchanged.pop(name, None)
    return exchanged


def records(connection: Connection, pipeline: int, names: Iterable[TableName] | None = None) -> Iterable[TableRecord]:
    """Returns the named tables, or all. Must never be combined with `for update`: a row that was locked after waiting
    is joined anew with the history *as this statement sees it*, in which the entry that the row now points to does not
    exist yet."""
    query = _current_states().where(tables.c.pipeline == pipeline)
    if names is not None:
        query = query.where(schema.of_tables(tables, pipeline, names))
    return [schema.record_of(row) for row in connection.execute(query)]


def history_of(connection: Connection, pipeline: int, name: TableName) -> tuple[HistoryEntry, ...]:
    query = select(*_STATE, seconds(history.c.at).label("at")).where(schema.of_table(history, pipeline, name))
    found = connection.execute(query.order_by(history.c.entry))
    return tuple(HistoryEntry(schema.state_of(row), row.at) for row in found)


def schemas_recorded(connection: Connection, pipeline: int, name: TableName) -> dict[Boundary, float | None]:
    stored = table_schemas.c
    query = select(stored.valid_from, seconds(stored.recorded).label("at"))
    found = connection.execute(query.where(schema.of_table(table_schemas, pipeline, name)))
    return {row.valid_from: row.at for row in found}


def since(connection: Connection, pipeline: int) -> dict[TableName, float]:
    """Returns when the current history entry of each table was written."""
    columns = (tables.c.table_schema, tables.c.table_name, seconds(history.c.at).label("at"))
    query = select(*columns).join(history, _IS_CURRENT).where(tables.c.pipeline == pipeline)
    return {schema.name_of(row): row.at for row in connection.execute(query)}


def _current_states() -> Select[tuple[object, ...]]:
    return select(tables, *_STATE).join(history, _IS_CURRENT)


def _schemas(connection: Connection, wanted: ColumnElement[bool]) -> dict[TableName, Versions]:
    found: dict[TableName, dict[Boundary, str]] = {}
    stored = table_schemas.c
    columns = (stored.table_schema, stored.table_name, stored.valid_from, cast(stored.definition, Text).label("json"))
    for row in connection.execute(select(*columns).where(wanted)):
        found.setdefault(schema.name_of(row), {})[row.valid_from] = row.json
    return {name: StoredVersions(definitions) for name, definitions in found.items()}


def _destinations(connection: Connection, wanted: ColumnElement[bool]) -> dict[TableName, DestinationMetadata]:
    query = select(destination_tables).where(wanted)
    return {schema.name_of(row): schema.metadata_of(row) for row in connection.execute(query)}


# -- Notification of writes by others: LISTEN on a separate connection, and polling of the revision as a fallback. -----
#
# The notification is a hint that makes waiting short; the revision in the pipeline's row is authoritative. So no change
# is missed when the connection was down, or where a pooler drops notifications: it is noticed a little later.
#
# A `Listener` must not be used by several threads at once; the store ensures this.

POLL_SECONDS = 2.0
SLICE_SECONDS = 0.25

_REVISION = "select revision from pgetl.pipelines where key = %s"

Connect = Callable[[], psycopg.Connection[Any]]


class Listener:
    """Waits for a pipeline's revision to differ from the one that the store has read."""

    def __init__(self, connect: Connect, pipeline: int) -> None:
        self._connect = connect
        self._pipeline = pipeline
        self._connection: psycopg.Connection[Any] | None = None
        self._polled = -inf
        self._stopped = False

    def hear(self, known: int, timeout: float) -> int | None:
        """Returns the new revision, or None if it did not change within the time. A broken connection is replaced
        once."""
        deadline = time.monotonic() + timeout
        if self._connection is not None:
            try:
                return self._hear(self._connection, known, deadline)
            except psycopg.OperationalError:
                self.disconnect()
        return self._hear(self._listen(), known, deadline)

    def stop(self) -> None:
        """Makes a `hear` in another thread return soon."""
        self._stopped = True

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _listen(self) -> psycopg.Connection[Any]:
        self._connection = connection = self._connect()
        connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel(self._pipeline))))
        self._polled = -inf
        return connection

    def _hear(self, connection: psycopg.Connection[Any], known: int, deadline: float) -> int | None:
        while not self._stopped:
            left = max(deadline - time.monotonic(), 0)
            if (stored := self._poll(connection, known)) != known:
                return stored
            notices = list(connection.notifies(timeout=min(left, SLICE_SECONDS), stop_after=1))
            told = max((int(notice.payload) for notice in notices if notice.payload.isdecimal()), default=known)
            if told > known:
                return told
            if left == 0:
                break
        return None

    def _poll(self, connection: psycopg.Connection[Any], known: int) -> int:
        """Returns the stored revision, or the known one until the next poll is due. For a pipeline that was destroyed
        it is later than the known one."""
        if time.monotonic() - self._polled < POLL_SECONDS:
            return known
        row = connection.execute(_REVISION, (self._pipeline,)).fetchone()
        self._polled = time.monotonic()
        return known + 1 if row is None else int(row[0])
