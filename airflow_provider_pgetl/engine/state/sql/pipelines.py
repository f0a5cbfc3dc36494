"""The pipeline's own row: made once, its revision told to others, its end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from sqlalchemy import (
    ColumnElement,
    Connection,
    Text,
    cast,
    delete,
    func,
    literal_column,
    null,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import OID, insert

from airflow_provider_pgetl.engine.lineage import Lineage
from airflow_provider_pgetl.engine.state import rows
from airflow_provider_pgetl.engine.state.instance import destroyed, new_instance
from airflow_provider_pgetl.engine.state.sql.clock import now
from airflow_provider_pgetl.engine.state.tables import pipelines, tables
from airflow_provider_pgetl.engine.tables import TableName

_NOTIFY = text("select pg_notify(:channel, :revision)")


_MARK = text("""
    insert into pgetl.changes as known (pipeline, table_schema, table_name, change, described)
    select :pipeline, s, t, :change, :described from unnest(cast(:schemas as text[]), cast(:names as text[])) as a(s, t)
    on conflict (pipeline, table_schema, table_name)
    do update set change = excluded.change, described = greatest(known.described, excluded.described)
""")


def channel(pipeline: int) -> str:
    return f"pgetl_{pipeline}"


def find_or_create(connection: Connection, pipeline_id: str) -> int:
    """The key of the row; looked for first, so that opening a store writes nothing as a rule."""
    found = select(pipelines.c.key).where(pipelines.c.id == pipeline_id)
    key: int | None = connection.execute(found).scalar()
    if key is None:
        created = insert(pipelines).values(id=pipeline_id, instance=new_instance()).on_conflict_do_nothing()
        connection.execute(created)
        return int(connection.execute(found).scalar_one())
    return key


def is_stored(connection: psycopg.Connection[Any], pipeline_id: str) -> bool:
    """Also where there is no such table yet."""
    if connection.execute("select to_regclass('pgetl.pipelines')").fetchall() == [(None,)]:
        return False
    return connection.execute("select 1 from pgetl.pipelines where id = %s", [pipeline_id]).fetchone() is not None


def instances(connection: Connection) -> dict[str, str]:
    return {row.id: row.instance for row in connection.execute(select(pipelines.c.id, pipelines.c.instance))}


def require(connection: Connection, pipeline: int, pipeline_id: str) -> None:
    """An error if the pipeline has been destroyed."""
    if connection.execute(select(pipelines.c.key).where(pipelines.c.key == pipeline)).first() is None:
        raise destroyed(pipeline_id)


def changes(connection: Connection, pipeline: int, pipeline_id: str) -> int:
    """How many there were, of a row that stays until the transaction ends."""
    counted = select(pipelines.c.changes).where(pipelines.c.key == pipeline)
    number: int | None = connection.execute(counted.with_for_update(read=True, key_share=True)).scalar()
    if number is None:
        raise destroyed(pipeline_id)
    return number


@dataclass(frozen=True, slots=True)
class Made:
    """The numbers that a change was given. `incarnation` tells the server, and the tables in it, from what they were
    before a restart, a restore, or a failover."""

    revision: int
    change: int
    incarnation: str


def incarnation() -> ColumnElement[str]:
    table: ColumnElement[Any] = literal_column(f"'{pipelines.fullname}'::regclass")
    parts = (func.pg_postmaster_start_time(), cast(table, OID), func.pg_relation_filenode(table))
    return func.concat_ws(" ", *(cast(part, Text) for part in parts)).label("incarnation")


def conclude(
    connection: Connection,
    pipeline: int,
    pipeline_id: str,
    names: Collection[TableName],
    *,
    described: bool,
    news: bool,
) -> Made:
    """Number a change of these tables, and tell its revision to whoever listens if it is news, when the transaction
    commits. The last step of a write: the row lock is what puts changes in the order of their numbers."""
    row_of = pipelines.c
    counted = update(pipelines).where(row_of.key == pipeline)
    counted = counted.values(revision=row_of.revision + int(news), changes=row_of.changes + 1)
    row = connection.execute(counted.returning(row_of.revision, row_of.changes, incarnation())).first()
    if row is None:
        raise destroyed(pipeline_id)
    if names:
        marked = {"pipeline": pipeline, "change": row.changes, "described": row.changes if described else 0}
        connection.execute(_MARK, {**marked, **rows.names_as_arrays(names)})
    if news:
        notify(connection, pipeline, row.revision)
    return Made(row.revision, row.changes, row.incarnation)


def notify(connection: Connection, pipeline: int, revision: int) -> None:
    connection.execute(_NOTIFY, {"channel": channel(pipeline), "revision": str(revision)})


def record_lineage(connection: Connection, pipeline: int, lineage: Lineage) -> None:
    written = update(pipelines).where(pipelines.c.key == pipeline).values(lineage=rows.lineage_json(lineage))
    connection.execute(written)


def set_owner(connection: Connection, pipeline: int, owner: str | None, instead_of: str | None) -> bool:
    """Whether it was recorded: not where the owner is another than `instead_of` by now."""
    expected = pipelines.c.owner.is_not_distinct_from(instead_of)
    written = update(pipelines).where(pipelines.c.key == pipeline, expected).values(owner=owner)
    return connection.execute(written.returning(pipelines.c.key)).first() is not None


def set_paused(connection: Connection, pipeline: int, paused: bool) -> float | None:
    """Since when it is."""
    since = func.coalesce(pipelines.c.paused, now()) if paused else null()
    written = update(pipelines).where(pipelines.c.key == pipeline).values(paused=since)
    moment: datetime | None = connection.execute(written.returning(pipelines.c.paused)).scalar()
    return None if moment is None else moment.timestamp()


def destroy(connection: Connection, pipeline: int) -> None:
    """Everything hangs on this row by foreign key. Destroying what is gone already is no error."""
    names = (tables.c.table_schema, tables.c.table_name)
    of_pipeline = select(*names).where(tables.c.pipeline == pipeline)
    connection.execute(of_pipeline.order_by(*names).with_for_update())
    gone = delete(pipelines).where(pipelines.c.key == pipeline).returning(pipelines.c.revision)
    revision = connection.execute(gone).scalar()
    if revision is not None:
        notify(connection, pipeline, revision + 1)
