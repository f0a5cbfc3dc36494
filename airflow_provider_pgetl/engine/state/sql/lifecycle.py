"""Forgetting a table, or what a copy of it left."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, select, update

from airflow_provider_pgetl.engine.positions import START
from airflow_provider_pgetl.engine.state import rows
from airflow_provider_pgetl.engine.state.tables import destination_tables, history, pipelines, table_schemas, tables
from airflow_provider_pgetl.engine.tables import TableName


def clear_copy_state(connection: Connection, pipeline: int, name: TableName) -> None:
    connection.execute(update(tables).where(rows.of_table(tables, pipeline, name)).values(high_water=START))
    for stored in (table_schemas, destination_tables):
        connection.execute(delete(stored).where(rows.of_table(stored, pipeline, name)))


def delete_table(connection: Connection, pipeline: int, name: TableName) -> None:
    """Also notes the generation: should the table come back, nothing of its former life is mistaken for it."""
    clear_copy_state(connection, pipeline, name)
    latest = select(func.max(history.c.generation)).where(rows.of_table(history, pipeline, name))
    generation = connection.execute(latest).scalar()
    connection.execute(delete(tables).where(rows.of_table(tables, pipeline, name)))
    higher = func.greatest(pipelines.c.last_generation, generation)
    if generation is not None:
        connection.execute(update(pipelines).where(pipelines.c.key == pipeline).values(last_generation=higher))
