"""The pipeline's own row: made once, its revision told to others, its end."""

from __future__ import annotations

from typing import Any

import psycopg
from sqlalchemy import Connection, delete, select, text, update
from sqlalchemy.dialects.postgresql import insert

from airflow_provider_pgetl.engine.lineage import Lineage
from airflow_provider_pgetl.engine.state import rows
from airflow_provider_pgetl.engine.state.instance import destroyed, new_instance
from airflow_provider_pgetl.engine.state.tables import pipelines, tables

_NOTIFY = text("select pg_notify(:channel, :revision)")


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


def require(connection: Connection, pipeline: int, pipeline_id: str) -> None:
    """An error if the pipeline has been destroyed."""
    if connection.execute(select(pipelines.c.key).where(pipelines.c.key == pipeline)).first() is None:
        raise destroyed(pipeline_id)


def announce(connection: Connection, pipeline: int, pipeline_id: str) -> int:
    """Raise the revision and tell it to whoever listens, when the transaction commits. The last step of a write."""
    raised = update(pipelines).where(pipelines.c.key == pipeline).values(revision=pipelines.c.revision + 1)
    revision: int | None = connection.execute(raised.returning(pipelines.c.revision)).scalar()
    if revision is None:
        raise destroyed(pipeline_id)
    notify(connection, pipeline, revision)
    return revision


def notify(connection: Connection, pipeline: int, revision: int) -> None:
    connection.execute(_NOTIFY, {"channel": channel(pipeline), "revision": str(revision)})


def record_lineage(connection: Connection, pipeline: int, lineage: Lineage) -> None:
    written = update(pipelines).where(pipelines.c.key == pipeline).values(lineage=rows.lineage_json(lineage))
    connection.execute(written)


def destroy(connection: Connection, pipeline: int) -> None:
    """Everything hangs on this row by foreign key. Destroying what is gone already is no error."""
    names = (tables.c.table_schema, tables.c.table_name)
    of_pipeline = select(*names).where(tables.c.pipeline == pipeline)
    connection.execute(of_pipeline.order_by(*names).with_for_update())
    gone = delete(pipelines).where(pipelines.c.key == pipeline).returning(pipelines.c.revision)
    revision = connection.execute(gone).scalar()
    if revision is not None:
        notify(connection, pipeline, revision + 1)
