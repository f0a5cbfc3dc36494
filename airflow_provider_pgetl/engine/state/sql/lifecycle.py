"""Forgetting a table, or what a copy of it left."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, delete, func, select, text, update

from airflow_provider_pgetl.engine.positions import START
from airflow_provider_pgetl.engine.state import rows
from airflow_provider_pgetl.engine.state.protocol import FoundTable
from airflow_provider_pgetl.engine.state.sql import phases, schemas
from airflow_provider_pgetl.engine.state.tables import destination_tables, history, pipelines, table_schemas, tables
from airflow_provider_pgetl.engine.tables import TableName


def clear_copy_state(connection: Connection, pipeline: int, name: TableName) -> None:
    connection.execute(
        update(tables)
        .where(rows.of_table(tables, pipeline, name))
        .values(high_water=START, marked_attempt=0, counted_from=None)
    )
    for stored in (table_schemas, destination_tables):
        connection.execute(delete(stored).where(rows.of_table(stored, pipeline, name)))


def begin_copies(connection: Connection, pipeline: int, found: Mapping[TableName, FoundTable]) -> list[TableName]:
    """The tables that are registered, of which that is now stored."""
    known = phases.lock(connection, pipeline, found)
    begun = {name: one for name, one in found.items() if name in known}
    if not begun:
        return []
    for stored in (table_schemas, destination_tables):
        connection.execute(delete(stored).where(rows.of_tables(stored, pipeline, begun)))
    values = {
        "pipeline": pipeline,
        **rows.names_as_arrays(begun),
        "relations": [one.relation for one in begun.values()],
        "memberships": [one.membership for one in begun.values()],
    }
    connection.execute(_FOUND, values)
    schemas.store_many(connection, pipeline, begun)
    schemas.store_destinations(connection, pipeline, {name: one.place for name, one in begun.items()})
    return list(begun)


_FOUND = text("""
    update pgetl.tables t set relation = given.relation, membership = given.membership,
                              high_water = '0/0', marked_attempt = 0, counted_from = null
    from unnest(cast(:schemas as text[]), cast(:names as text[]), cast(:relations as bigint[]),
                cast(:memberships as bigint[])) as given (table_schema, table_name, relation, membership)
    where t.pipeline = :pipeline and (t.table_schema, t.table_name) = (given.table_schema, given.table_name)
""")


def delete_table(connection: Connection, pipeline: int, name: TableName) -> None:
    """Also notes the generation: should the table come back, nothing of its former life is mistaken for it."""
    clear_copy_state(connection, pipeline, name)
    latest = select(func.max(history.c.generation)).where(rows.of_table(history, pipeline, name))
    generation = connection.execute(latest).scalar()
    connection.execute(delete(tables).where(rows.of_table(tables, pipeline, name)))
    higher = func.greatest(pipelines.c.last_generation, generation)
    if generation is not None:
        connection.execute(update(pipelines).where(pipelines.c.key == pipeline).values(last_generation=higher))
