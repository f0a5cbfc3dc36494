"""Statements on tables and their phases: registration, changes by `transition` under row locks, and the history."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Connection, TextClause, and_, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from airflow_provider_pgetl.engine.model.phases import Event, Refused, TableState
from airflow_provider_pgetl.engine.model.positions import START, Boundary, HighWater
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.state import schema
from airflow_provider_pgetl.engine.state import schema as state_schema
from airflow_provider_pgetl.engine.state.schema import (
    COUNTED_KINDS,
    attempts,
    destination_tables,
    history,
    pipelines,
    table_schemas,
    tables,
)
from airflow_provider_pgetl.engine.state.sql import loading
from airflow_provider_pgetl.engine.state.sql.pipelines import in_seconds, now
from airflow_provider_pgetl.engine.state.store import DestinationMetadata, FoundTable, Registration, TableRecord
from airflow_provider_pgetl.engine.state.view import HISTORY_KEPT, superseded, take, take_each


def register(connection: Connection, pipeline: int, given: Mapping[TableName, Registration]) -> list[TableName]:
    """Returns the tables that this changed. Existing tables are locked before any is added: adding one locks the
    pipeline's row, which comes after the tables, as in every change."""
    names = sorted(given)
    values = {
        "pipeline": pipeline,
        **schema.names_as_arrays(names),
        "relations": [given[name].relation for name in names],
        "memberships": [given[name].membership for name in names],
        "terms": [
            None if (selection := given[name].selection) is None else json.dumps(selection.as_json()) for name in names
        ],
    }
    lock(connection, pipeline, names)
    added = [schema.name_of(row) for row in connection.execute(_ADD, values)]
    if added:
        last_generation = select(pipelines.c.last_generation).where(pipelines.c.key == pipeline)
        state = TableState(generation=connection.execute(last_generation).scalar_one() + 1)
        _write_history(connection, pipeline, dict.fromkeys(added, (0, state)))
    noted = [schema.name_of(row) for row in connection.execute(_NOTE, values)]
    return [*added, *noted]


_GIVEN = """
    unnest(cast(:schemas as text[]), cast(:names as text[]), cast(:relations as bigint[]),
           cast(:memberships as bigint[]), cast(:terms as text[]))
        as given (table_schema, table_name, relation, membership, terms)
"""

_ADD = text(f"""
    insert into pgetl.tables (pipeline, table_schema, table_name, current, relation, membership, terms)
    select :pipeline, table_schema, table_name, 1, relation, membership, cast(terms as json) from {_GIVEN}
    on conflict do nothing returning table_schema, table_name
""")

# The type json has no equality operator, but keeps its text as it was written.
_NOTE = text(f"""
    update pgetl.tables t
    set relation = given.relation, membership = given.membership,
        terms = coalesce(cast(given.terms as json), t.terms)
    from {_GIVEN}
    where t.pipeline = :pipeline and (t.table_schema, t.table_name) = (given.table_schema, given.table_name)
      and (t.relation is distinct from given.relation or t.membership is distinct from given.membership
           or cast(t.terms as text) is distinct from coalesce(given.terms, cast(t.terms as text)))
    returning t.table_schema, t.table_name
""")


def apply(
    connection: Connection, pipeline: int, events: Mapping[TableName, Event], epoch: int | None = None
) -> tuple[Mapping[TableName, TableRecord], Mapping[TableName, TableState] | Refused]:
    """Returns the tables as they were, locked, and their new states; writes nothing where nothing changed."""
    entries = lock(connection, pipeline, events)
    refused = None if epoch is None else superseded(_locked_epoch(connection, pipeline), epoch)
    if refused is not None:
        return {}, refused
    before = {record.table: record for record in loading.records(connection, pipeline, events)}
    taken = take({name: record.state for name, record in before.items()}, events)
    if not isinstance(taken, Refused):
        _append(connection, pipeline, entries, before, taken)
    return before, taken


def apply_each(
    connection: Connection, pipeline: int, events: Mapping[TableName, Event], epoch: int | None = None
) -> tuple[Mapping[TableName, TableRecord], Mapping[TableName, TableState | Refused]]:
    """Does the same as `apply`, but for each table separately."""
    entries = lock(connection, pipeline, events)
    refused = None if epoch is None else superseded(_locked_epoch(connection, pipeline), epoch)
    if refused is not None:
        return {}, dict.fromkeys(events, refused)
    before = {record.table: record for record in loading.records(connection, pipeline, events)}
    taken = take_each({name: record.state for name, record in before.items()}, events)
    accepted = {name: state for name, state in taken.items() if not isinstance(state, Refused)}
    _append(connection, pipeline, entries, before, accepted)
    return before, taken


def _locked_epoch(connection: Connection, pipeline: int) -> int:
    """Returns the epoch, which cannot rise before this transaction has ended. The row is locked as every change locks
    it at its end, and like there after the tables: a weaker or an earlier lock would cause deadlocks."""
    query = select(pipelines.c.epoch).where(pipelines.c.key == pipeline).with_for_update()
    epoch: int = connection.execute(query).scalar_one()
    return epoch


def lock(connection: Connection, pipeline: int, names: Iterable[TableName]) -> dict[TableName, int]:
    """Locks the tables' rows in the order of their names; returns the number of each table's current history entry."""
    query = select(tables.c.table_schema, tables.c.table_name, tables.c.current)
    query = query.where(schema.of_tables(tables, pipeline, names))
    query = query.order_by(tables.c.table_schema, tables.c.table_name).with_for_update()
    return {schema.name_of(row): row.current for row in connection.execute(query)}


def _append(
    connection: Connection,
    pipeline: int,
    entries: Mapping[TableName, int],
    before: Mapping[TableName, TableRecord],
    states: Mapping[TableName, TableState],
) -> None:
    """Adds a history entry for each table that changed, linked to its previous entry."""
    changed = {name: (entries[name], state) for name, state in states.items() if state != before[name].state}
    if not changed:
        return
    _write_history(connection, pipeline, changed)
    moved = update(tables).where(schema.of_tables(tables, pipeline, changed)).values(current=tables.c.current + 1)
    connection.execute(moved)
    for name, (current, _) in changed.items():
        if current >= HISTORY_KEPT:
            _forget_before(connection, pipeline, name, current + 2 - HISTORY_KEPT)


def _write_history(connection: Connection, pipeline: int, states: Mapping[TableName, tuple[int, TableState]]) -> None:
    """Writes each state with the number of the entry before it, 0 where there is none."""
    stored = [schema.state_values(state) for _, state in states.values()]
    values = {
        "pipeline": pipeline,
        **schema.names_as_arrays(states),
        "before": [current for current, _ in states.values()],
        "generations": [one["generation"] for one in stored],
        "attempts": [one["attempt"] for one in stored],
        "copied": [None if one["copied"] is None else str(one["copied"]) for one in stored],
        "phases": [json.dumps(one["phase"]) for one in stored],
    }
    connection.execute(_ENTER, values)


_ENTER = text("""
    insert into pgetl.history (pipeline, table_schema, table_name, entry, previous, generation, attempt, copied, phase)
    select :pipeline, s, t, before + 1, nullif(before, 0), generation, attempt, cast(copied as pg_lsn),
           cast(phase as json)
    from unnest(cast(:schemas as text[]), cast(:names as text[]), cast(:before as int[]),
                cast(:generations as bigint[]), cast(:attempts as bigint[]), cast(:copied as text[]),
                cast(:phases as text[])) as given (s, t, before, generation, attempt, copied, phase)
""")


def _forget_before(connection: Connection, pipeline: int, name: TableName, entry: int) -> None:
    of_table = schema.of_table(history, pipeline, name)
    connection.execute(delete(history).where(of_table, history.c.entry < entry))


def acknowledge(connection: Connection, pipeline: int, generations: Mapping[TableName, int]) -> list[TableName]:
    """Returns the tables whose acknowledged generation was raised."""
    if not generations:
        return []
    marks = {"generations": list(generations.values())}
    return _raised(connection, _ACKNOWLEDGE, pipeline, generations, marks)


def raise_high_water(
    connection: Connection, pipeline: int, positions: Mapping[TableName, HighWater]
) -> list[TableName]:
    """Returns the tables whose mark was raised."""
    if not positions:
        return []
    marks = {
        "attempts": [mark.attempt for mark in positions.values()],
        "positions": [str(mark.position) for mark in positions.values()],
        **schema.counted_as_arrays(positions.values()),
    }
    return _raised(connection, _RAISE_HIGH_WATER, pipeline, positions, marks)


def _raised(
    connection: Connection, statement: TextClause, pipeline: int, names: Iterable[TableName], marks: dict[str, Any]
) -> list[TableName]:
    """Runs one statement that never lowers a value, writes only those that rise, and locks in the order of names."""
    values = {"pipeline": pipeline, **schema.names_as_arrays(names), **marks}
    return [schema.name_of(row) for row in connection.execute(statement, values)]


def _raising(marks: Mapping[str, str], given: str, beside: Mapping[str, str] = MappingProxyType({})) -> TextClause:
    """`marks`: columns with the values to which they are raised, which are compared as one row; `beside`: columns that
    are set together with them; `given`: the arrays that hold the values."""
    stored, wanted = ", ".join(f"t.{name}" for name in marks), ", ".join(marks.values())
    values = {**marks, **beside}
    raised = ", ".join(f"{name} = higher.{name}" for name in values)
    return text(f"""
        with higher as (
            select t.table_schema, t.table_name, {", ".join(f"{value} as {name}" for name, value in values.items())}
            from unnest(cast(:schemas as text[]), cast(:names as text[]), {given})
            join pgetl.tables t using (table_schema, table_name)
            where t.pipeline = :pipeline and ({stored}) < ({wanted})
            order by t.table_schema, t.table_name for no key update of t
        )
        update pgetl.tables t set {raised} from higher
        where t.pipeline = :pipeline and (t.table_schema, t.table_name) = (higher.table_schema, higher.table_name)
          and ({stored}) < ({", ".join(f"higher.{name}" for name in marks)})
        returning t.table_schema, t.table_name
    """)


_ACKNOWLEDGE = _raising(
    {"acknowledged": "given.generation"},
    "cast(:generations as bigint[])) as given (table_schema, table_name, generation",
)
_RAISE_HIGH_WATER = _raising(
    {"marked_attempt": "given.attempt", "high_water": "cast(given.position as pg_lsn)"},
    "cast(:attempts as bigint[]), cast(:positions as text[]), cast(:counted_from as text[]), "
    f"{', '.join(f'cast(:{kind} as bigint[])' for kind in COUNTED_KINDS)}, cast(:commit_times as bigint[])) "
    f"as given (table_schema, table_name, attempt, position, counted_from, {', '.join(COUNTED_KINDS)}, commit_time",
    {
        "counted_from": "cast(given.counted_from as pg_lsn)",
        **{name: f"given.{name}" for name in (*COUNTED_KINDS, "commit_time")},
    },
)


# -- Versions of table schemas, and the metadata of the destination. ---------------------------------------------------


def store_schema(
    connection: Connection, pipeline: int, name: TableName, valid_from: Boundary, schema: TableSchema
) -> None:
    added = insert(table_schemas).values(
        **state_schema.keys(pipeline, name), valid_from=valid_from, definition=schema.as_json()
    )
    key = ["pipeline", "table_schema", "table_name", "valid_from"]
    connection.execute(added.on_conflict_do_update(index_elements=key, set_={"definition": added.excluded.definition}))


def forget_schemas(connection: Connection, pipeline: int, name: TableName, valid_from: Collection[Boundary]) -> None:
    of_table = state_schema.of_table(table_schemas, pipeline, name)
    connection.execute(delete(table_schemas).where(of_table, table_schemas.c.valid_from.in_(valid_from)))


def store_many(connection: Connection, pipeline: int, found: Mapping[TableName, FoundTable]) -> None:
    """Stores first versions of tables that have none."""
    values = {
        "pipeline": pipeline,
        **state_schema.names_as_arrays(found),
        "valid_from": [str(one.valid_from) for one in found.values()],
        "definitions": [json.dumps(one.schema.as_json()) for one in found.values()],
    }
    connection.execute(_STORE, values)


def store_destinations(connection: Connection, pipeline: int, places: Mapping[TableName, DestinationMetadata]) -> None:
    values = {
        "pipeline": pipeline,
        **state_schema.names_as_arrays(places),
        "there_schemas": [one.destination.schema for one in places.values()],
        "there_names": [one.destination.name for one in places.values()],
        "snapshots": [str(one.snapshot) for one in places.values()],
        "applied": [one.applied for one in places.values()],
        "details": [json.dumps(one.details) for one in places.values()],
    }
    connection.execute(_PLACE, values)


_STORE = text("""
    insert into pgetl.table_schemas (pipeline, table_schema, table_name, valid_from, definition)
    select :pipeline, s, t, cast(valid_from as pg_lsn), cast(definition as json)
    from unnest(cast(:schemas as text[]), cast(:names as text[]), cast(:valid_from as text[]),
                cast(:definitions as text[])) as given (s, t, valid_from, definition)
""")

_PLACE = text("""
    insert into pgetl.destination_tables
        (pipeline, table_schema, table_name, destination_schema, destination_name, snapshot, applied, details)
    select :pipeline, s, t, there_schema, there_name, cast(snapshot as pg_lsn), applied, cast(details as json)
    from unnest(cast(:schemas as text[]), cast(:names as text[]), cast(:there_schemas as text[]),
                cast(:there_names as text[]), cast(:snapshots as text[]), cast(:applied as boolean[]),
                cast(:details as text[]))
        as given (s, t, there_schema, there_name, snapshot, applied, details)
    on conflict (pipeline, table_schema, table_name) do update
    set destination_schema = excluded.destination_schema, destination_name = excluded.destination_name,
        snapshot = excluded.snapshot, applied = excluded.applied, details = excluded.details
""")


# -- Deleting a table, or the state of its copy. -----------------------------------------------------------------------


def clear_copy_state(connection: Connection, pipeline: int, name: TableName) -> None:
    connection.execute(
        update(tables)
        .where(schema.of_table(tables, pipeline, name))
        .values(high_water=START, marked_attempt=0, counted_from=None)
    )
    for stored in (table_schemas, destination_tables):
        connection.execute(delete(stored).where(schema.of_table(stored, pipeline, name)))


def begin_copies(connection: Connection, pipeline: int, found: Mapping[TableName, FoundTable]) -> list[TableName]:
    """Returns the tables that are registered: only for these the new state is stored."""
    known = lock(connection, pipeline, found)
    begun = {name: one for name, one in found.items() if name in known}
    if not begun:
        return []
    for stored in (table_schemas, destination_tables):
        connection.execute(delete(stored).where(schema.of_tables(stored, pipeline, begun)))
    values = {
        "pipeline": pipeline,
        **schema.names_as_arrays(begun),
        "relations": [one.relation for one in begun.values()],
        "memberships": [one.membership for one in begun.values()],
    }
    connection.execute(_FOUND, values)
    store_many(connection, pipeline, begun)
    store_destinations(connection, pipeline, {name: one.place for name, one in begun.items()})
    return list(begun)


_FOUND = text("""
    update pgetl.tables t set relation = given.relation, membership = given.membership,
                              high_water = '0/0', marked_attempt = 0, counted_from = null
    from unnest(cast(:schemas as text[]), cast(:names as text[]), cast(:relations as bigint[]),
                cast(:memberships as bigint[])) as given (table_schema, table_name, relation, membership)
    where t.pipeline = :pipeline and (t.table_schema, t.table_name) = (given.table_schema, given.table_name)
""")


def delete_table(connection: Connection, pipeline: int, name: TableName) -> None:
    """Also records the generation, so that nothing of the deleted table is mistaken for that of a table which is added
    again under its name."""
    clear_copy_state(connection, pipeline, name)
    latest = select(func.max(history.c.generation)).where(schema.of_table(history, pipeline, name))
    generation = connection.execute(latest).scalar()
    connection.execute(delete(tables).where(schema.of_table(tables, pipeline, name)))
    higher = func.greatest(pipelines.c.last_generation, generation)
    if generation is not None:
        connection.execute(update(pipelines).where(pipelines.c.key == pipeline).values(last_generation=higher))


# -- Copy attempts and their heartbeats. An expired attempt stays dead: others have acted on its expiry. ---------------


def start_attempt(connection: Connection, pipeline: int, ttl: float, holder: str) -> int:
    """Returns the next number, which was never given before."""
    counted = update(pipelines).where(pipelines.c.key == pipeline)
    counted = counted.values(last_attempt=pipelines.c.last_attempt + 1).returning(pipelines.c.last_attempt)
    attempt: int = connection.execute(counted).scalar_one()
    connection.execute(delete(attempts).where(attempts.c.pipeline == pipeline, attempts.c.expires <= now()))
    begun = insert(attempts).values(pipeline=pipeline, attempt=attempt, holder=holder, expires=in_seconds(ttl))
    connection.execute(begun)
    return attempt


def last_attempt(connection: Connection, pipeline: int) -> int:
    return connection.execute(select(pipelines.c.last_attempt).where(pipelines.c.key == pipeline)).scalar() or 0


def beat_attempt(connection: Connection, pipeline: int, attempt: int, ttl: float) -> bool:
    beaten = update(attempts).where(_of_attempt(pipeline, attempt), attempts.c.expires > now())
    return connection.execute(beaten.values(expires=in_seconds(ttl))).rowcount > 0


def end_attempt(connection: Connection, pipeline: int, attempt: int) -> bool:
    """Returns whether there was an attempt to end."""
    return connection.execute(delete(attempts).where(_of_attempt(pipeline, attempt))).rowcount > 0


def living_attempts(connection: Connection, pipeline: int) -> Mapping[int, str]:
    """Returns the live attempts with their holders."""
    columns = select(attempts.c.attempt, attempts.c.holder)
    query = columns.where(attempts.c.pipeline == pipeline, attempts.c.expires > now())
    return {row.attempt: row.holder for row in connection.execute(query)}


def _of_attempt(pipeline: int, attempt: int) -> ColumnElement[bool]:
    return and_(attempts.c.pipeline == pipeline, attempts.c.attempt == attempt)
