"""Statements on the results of verifications. The rows that differed are stored beside their result, because a status
needs only the result."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, cast, delete, func, literal, select
from sqlalchemy.dialects.postgresql import insert

from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.model.verification import TableVerified
from airflow_provider_pgetl.engine.state import schema
from airflow_provider_pgetl.engine.state.schema import tables, verifications
from airflow_provider_pgetl.engine.state.store import DIFFERING_KEPT

_TABLE = ("pipeline", "table_schema", "table_name")


def record(connection: Connection, pipeline: int, results: Sequence[TableVerified]) -> None:
    """Adds the results of tables that are registered, and deletes those that are not kept any more."""
    stored = verifications.c
    for result in sorted(results, key=lambda one: one.table):
        values = {
            stored.differs: result.verdict == "different",
            stored.result: result.as_json(with_rows=False),
            stored.rows: [one.as_json() for one in result.differences],
        }
        typed = [cast(literal(value, column.type), column.type) for column, value in values.items()]
        keys = [tables.c[name] for name in _TABLE]
        found = select(*keys, *typed).where(schema.of_table(tables, pipeline, result.table))
        found = found.with_for_update(read=True, key_share=True)
        connection.execute(insert(verifications).from_select([*_TABLE, *(column.name for column in values)], found))
        _delete_old(connection, pipeline, result.table)


def _delete_old(connection: Connection, pipeline: int, table: TableName) -> None:
    mine, number = schema.of_table(verifications, pipeline, table), verifications.c.number
    newest = select(func.max(number)).where(mine).scalar_subquery()
    differing = (
        select(number)
        .where(mine, verifications.c.differs, number < newest)
        .order_by(number.desc())
        .limit(DIFFERING_KEPT)
        .scalar_subquery()
    )
    connection.execute(delete(verifications).where(mine, number < newest, number.not_in(differing)))


def kept(connection: Connection, pipeline: int, table: TableName) -> list[TableVerified]:
    columns = verifications.c
    query = select(columns.result, columns.rows).where(schema.of_table(verifications, pipeline, table))
    found = connection.execute(query.order_by(columns.number))
    return [TableVerified.from_json({**result, "differences": rows}) for result, rows in found]


def newest(connection: Connection, pipeline: int) -> dict[TableName, TableVerified]:
    columns = verifications.c
    latest = select(func.max(columns.number)).where(columns.pipeline == pipeline)
    latest = latest.group_by(columns.table_schema, columns.table_name)
    query = select(columns.result).where(columns.pipeline == pipeline, columns.number.in_(latest))
    found = map(TableVerified.from_json, connection.execute(query).scalars())
    return {one.table: one for one in found}
