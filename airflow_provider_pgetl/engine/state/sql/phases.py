"""Tables and their phases: registered, moved by `transition` under row locks, their history kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, cast, column, delete, func, insert, or_, select, update, values
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.types import BigInteger, Text, TypeEngine

from airflow_provider_pgetl.engine.phases import Event, Refused, TableState
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state import rows
from airflow_provider_pgetl.engine.state.protocol import TableRecord
from airflow_provider_pgetl.engine.state.sql import reading
from airflow_provider_pgetl.engine.state.tables import Lsn, history, pipelines, tables
from airflow_provider_pgetl.engine.state.transitions import HISTORY_KEPT, superseded, take
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.engine.terms import Terms


def register(
    connection: Connection,
    pipeline: int,
    name: TableName,
    relation: int,
    membership: int | None,
    terms: Terms | None = None,
) -> bool:
    """Whether that changed anything."""
    noted: dict[str, Any] = {"relation": relation, "membership": membership}
    if terms is not None:
        noted["terms"] = terms.as_json()
    key = rows.keys(pipeline, name)
    added = upsert(tables).values(**key, **noted, current=1).on_conflict_do_nothing().returning(tables.c.current)
    if connection.execute(added).first() is None:
        return _note(connection, pipeline, name, noted)
    last_generation = select(pipelines.c.last_generation).where(pipelines.c.key == pipeline)
    state = TableState(generation=connection.execute(last_generation).scalar_one() + 1)
    connection.execute(insert(history).values(**key, **rows.state_values(state), entry=1))
    return True


def _note(connection: Connection, pipeline: int, name: TableName, values: Mapping[str, Any]) -> bool:
    differs = or_(*(_differs(column, value) for column, value in values.items()))
    noted = update(tables).where(rows.of_table(tables, pipeline, name), differs).values(**values)
    return connection.execute(noted.returning(tables.c.current)).first() is not None


def _differs(column: str, value: Any) -> ColumnElement[bool]:
    """The type json has no equality, but keeps its text as it was written."""
    if column == "terms":
        return cast(tables.c.terms, Text).is_distinct_from(json.dumps(value))
    return tables.c[column].is_distinct_from(value)


def apply(
    connection: Connection, pipeline: int, events: Mapping[TableName, Event], epoch: int | None = None
) -> tuple[Mapping[TableName, TableRecord], Mapping[TableName, TableState] | Refused]:
    """The tables as they were, locked, and the states that they are in now; nothing written where nothing changed."""
    entries = _lock(connection, pipeline, events)
    refused = None if epoch is None else superseded(_locked_epoch(connection, pipeline), epoch)
    if refused is not None:
        return {}, refused
    before = {record.table: record for record in reading.records(connection, pipeline, events)}
    taken = take({name: record.state for name, record in before.items()}, events)
    if not isinstance(taken, Refused):
        _append(
            connection,
            pipeline,
            {name: (entries[name], state) for name, state in taken.items() if state != before[name].state},
        )
    return before, taken


def _locked_epoch(connection: Connection, pipeline: int) -> int:
    """It cannot rise before this transaction has ended. Locked as every change locks it at its end, and like there
    after the tables: a weaker lock, or an earlier one, would make deadlocks."""
    query = select(pipelines.c.epoch).where(pipelines.c.key == pipeline).with_for_update()
    epoch: int = connection.execute(query).scalar_one()
    return epoch


def _lock(connection: Connection, pipeline: int, names: Iterable[TableName]) -> dict[TableName, int]:
    """Row locks in the order of names, whoever takes them; answers each table's current entry."""
    query = select(tables.c.table_schema, tables.c.table_name, tables.c.current)
    query = query.where(rows.of_tables(tables, pipeline, names))
    query = query.order_by(tables.c.table_schema, tables.c.table_name).with_for_update()
    return {rows.name_of(row): row.current for row in connection.execute(query)}


def _append(connection: Connection, pipeline: int, states: Mapping[TableName, tuple[int, TableState]]) -> None:
    """One more entry for each table, linked to the one before."""
    if not states:
        return
    entries = [
        {**rows.keys(pipeline, name), **rows.state_values(state), "entry": current + 1, "previous": current}
        for name, (current, state) in states.items()
    ]
    connection.execute(insert(history).values(entries))
    moved = update(tables).where(rows.of_tables(tables, pipeline, states)).values(current=tables.c.current + 1)
    connection.execute(moved)
    for name, (current, _) in states.items():
        if current >= HISTORY_KEPT:
            _forget_before(connection, pipeline, name, current + 2 - HISTORY_KEPT)


def _forget_before(connection: Connection, pipeline: int, name: TableName, entry: int) -> None:
    of_table = rows.of_table(history, pipeline, name)
    connection.execute(delete(history).where(of_table, history.c.entry < entry))


def acknowledge(connection: Connection, pipeline: int, generations: Mapping[TableName, int]) -> bool:
    """Whether that raised anything."""
    return _raise(connection, pipeline, "acknowledged", BigInteger(), generations)


def raise_high_water(connection: Connection, pipeline: int, positions: Mapping[TableName, Boundary]) -> None:
    _raise(connection, pipeline, "high_water", Lsn(), positions)


def _raise(
    connection: Connection, pipeline: int, mark: str, kind: TypeEngine[Any], marks: Mapping[TableName, Any]
) -> bool:
    """Never lowers, writes only what rises, locks in the order of names; one statement."""
    if not marks:
        return False
    given = values(column("table_schema", Text), column("table_name", Text), column("mark", kind), name="given")
    given = given.data([(name.schema, name.name, value) for name, value in marks.items()])
    same = (tables.c.table_schema == given.c.table_schema) & (tables.c.table_name == given.c.table_name)
    locked = select(given).join(tables, same)
    locked = locked.where(tables.c.pipeline == pipeline, tables.c[mark] < given.c.mark)
    locked = locked.order_by(given.c.table_schema, given.c.table_name).with_for_update(of=tables)
    higher = locked.cte("higher")
    raised = (
        update(tables)
        .where(tables.c.pipeline == pipeline)
        .where(tables.c.table_schema == higher.c.table_schema, tables.c.table_name == higher.c.table_name)
        .values({mark: func.greatest(tables.c[mark], higher.c.mark)})
    )
    return connection.execute(raised).rowcount > 0
