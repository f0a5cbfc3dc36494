"""How far each table was when its changes were last announced, and by which run. Runs announce no counts."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, select
from sqlalchemy.dialects.postgresql import insert

from airflow_provider_pgetl.engine.state import rows
from airflow_provider_pgetl.engine.state.tables import announced
from airflow_provider_pgetl.engine.tables import TableName


def record(connection: Connection, pipeline: int, run: str, positions: Mapping[TableName, str]) -> None:
    if not positions:
        return
    values = [{**rows.keys(pipeline, table), "position": at, "run": run} for table, at in positions.items()]
    added = insert(announced).values(values)
    keys = ["pipeline", "table_schema", "table_name"]
    told = {"position": added.excluded.position, "run": added.excluded.run, "counted_from": None}
    connection.execute(added.on_conflict_do_update(index_elements=keys, set_=told))


def read(connection: Connection, pipeline: int, run: str) -> Mapping[TableName, str]:
    query = select(announced).where(announced.c.pipeline == pipeline, announced.c.run != run)
    return {rows.name_of(row): row.position for row in connection.execute(query)}
