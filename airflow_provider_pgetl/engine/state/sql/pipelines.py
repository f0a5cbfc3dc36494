"""Statements on the pipeline's own row and on what is stored beside the tables: leases, lags, completions, progress."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Double,
    Text,
    Update,
    and_,
    case,
    cast,
    delete,
    func,
    literal_column,
    null,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import OID, insert

from airflow_provider_pgetl.engine.model.positions import Boundary, Lineage, Seen
from airflow_provider_pgetl.engine.model.results import RESOLUTIONS, Lease, Measurement, Resolution
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state import schema
from airflow_provider_pgetl.engine.state.schema import (
    announced,
    completions,
    lags,
    measurements,
    pipelines,
    progress,
    tables,
)
from airflow_provider_pgetl.engine.state.store import (
    Lag,
    destroyed,
    new_instance,
)

# -- The database's clock, which alone decides when leases and attempts expire. ----------------------------------------
#
# `clock_timestamp()`, not `now()`: a statement that has waited for a lock must not use the time at which it began.


def now() -> ColumnElement[datetime]:
    return func.clock_timestamp()


def read_clock(connection: Connection) -> float:
    return connection.execute(select(seconds(now()))).scalar_one()


def in_seconds(ttl: float) -> ColumnElement[datetime]:
    return func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, cast(ttl, Double))


def seconds(moment: ColumnElement[datetime]) -> ColumnElement[float]:
    """Returns the moment as seconds since the Unix epoch."""
    return cast(func.extract("epoch", moment), Double)


# -- Pipelines. --------------------------------------------------------------------------------------------------------

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
    """Returns the key of the pipeline's row. The row is looked for first, so that opening a store usually writes
    nothing."""
    found = select(pipelines.c.key).where(pipelines.c.id == pipeline_id)
    key: int | None = connection.execute(found).scalar()
    if key is None:
        created = insert(pipelines).values(id=pipeline_id, instance=new_instance()).on_conflict_do_nothing()
        connection.execute(created)
        return int(connection.execute(found).scalar_one())
    return key


def is_stored(connection: psycopg.Connection[Any], pipeline_id: str) -> bool:
    """Also answers where the table does not exist yet."""
    if connection.execute("select to_regclass('pgetl.pipelines')").fetchall() == [(None,)]:
        return False
    return connection.execute("select 1 from pgetl.pipelines where id = %s", [pipeline_id]).fetchone() is not None


def instances(connection: Connection) -> dict[str, str]:
    return {row.id: row.instance for row in connection.execute(select(pipelines.c.id, pipelines.c.instance))}


def require(connection: Connection, pipeline: int, pipeline_id: str) -> None:
    """Raises an error if the pipeline has been destroyed."""
    if connection.execute(select(pipelines.c.key).where(pipelines.c.key == pipeline)).first() is None:
        raise destroyed(pipeline_id)


def changes(connection: Connection, pipeline: int, pipeline_id: str) -> int:
    """Returns the number of changes so far, and locks the pipeline's row so that it is not deleted before the
    transaction ends."""
    counted = select(pipelines.c.changes).where(pipelines.c.key == pipeline)
    number: int | None = connection.execute(counted.with_for_update(read=True, key_share=True)).scalar()
    if number is None:
        raise destroyed(pipeline_id)
    return number


@dataclass(frozen=True, slots=True)
class Made:
    """The numbers that a change was given. `incarnation` distinguishes the server, and the tables in it, from those
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
    notifies: bool,
) -> Made:
    """Numbers a change of these tables. If it `notifies`, listeners are notified of its revision when the transaction
    commits. This is the last step of a write: the lock of the pipeline's row puts changes in the order of their
    numbers."""
    row_of = pipelines.c
    counted = update(pipelines).where(row_of.key == pipeline)
    counted = counted.values(revision=row_of.revision + int(notifies), changes=row_of.changes + 1)
    row = connection.execute(counted.returning(row_of.revision, row_of.changes, incarnation())).first()
    if row is None:
        raise destroyed(pipeline_id)
    if names:
        marked = {"pipeline": pipeline, "change": row.changes, "described": row.changes if described else 0}
        connection.execute(_MARK, {**marked, **schema.names_as_arrays(names)})
    if notifies:
        notify(connection, pipeline, row.revision)
    return Made(row.revision, row.changes, row.incarnation)


def notify(connection: Connection, pipeline: int, revision: int) -> None:
    connection.execute(_NOTIFY, {"channel": channel(pipeline), "revision": str(revision)})


def record_lineage(connection: Connection, pipeline: int, lineage: Lineage) -> None:
    written = update(pipelines).where(pipelines.c.key == pipeline).values(lineage=schema.lineage_json(lineage))
    connection.execute(written)


def set_owner(connection: Connection, pipeline: int, owner: str | None, instead_of: str | None) -> bool:
    """Returns whether the owner was recorded; it is not if the owner is no longer `instead_of`."""
    expected = pipelines.c.owner.is_not_distinct_from(instead_of)
    written = update(pipelines).where(pipelines.c.key == pipeline, expected).values(owner=owner)
    return connection.execute(written.returning(pipelines.c.key)).first() is not None


def set_paused(connection: Connection, pipeline: int, paused: bool) -> float | None:
    """Returns the time since which the pipeline is paused; None if it is not."""
    since = func.coalesce(pipelines.c.paused, now()) if paused else null()
    written = update(pipelines).where(pipelines.c.key == pipeline).values(paused=since)
    moment: datetime | None = connection.execute(written.returning(pipelines.c.paused)).scalar()
    return None if moment is None else moment.timestamp()


def destroy(connection: Connection, pipeline: int) -> None:
    """All other rows depend on this row by foreign keys. Destroying a pipeline that no longer exists is not an
    error."""
    names = (tables.c.table_schema, tables.c.table_name)
    of_pipeline = select(*names).where(tables.c.pipeline == pipeline)
    connection.execute(of_pipeline.order_by(*names).with_for_update())
    gone = delete(pipelines).where(pipelines.c.key == pipeline).returning(pipelines.c.revision)
    revision = connection.execute(gone).scalar()
    if revision is not None:
        notify(connection, pipeline, revision + 1)


# -- The lease to stream. Each operation is one statement on the pipeline's row; a later one finds the row changed. ----

_EXPIRES = seconds(pipelines.c.expires).label("expires")


def acquire_lease(
    connection: Connection, pipeline: int, holder: str, ttl: float, over: int | None = None
) -> Lease | None:
    row_of = pipelines.c
    free = or_(row_of.holder.is_(None), row_of.holder == holder, row_of.expires <= now(), row_of.epoch == over)
    taken = _of(pipeline).where(free)
    taken = taken.values(epoch=row_of.epoch + 1, holder=holder, expires=in_seconds(ttl))
    row = connection.execute(taken.returning(row_of.holder, row_of.epoch, _EXPIRES)).first()
    return None if row is None else Lease(row.holder, row.epoch, row.expires)


def renew_lease(connection: Connection, pipeline: int, epoch: int, ttl: float) -> bool:
    """Also renews a lease that has expired, as long as no other holder has taken it."""
    renewed = _of(pipeline).where(_held_under(epoch)).values(expires=in_seconds(ttl))
    return connection.execute(renewed).rowcount > 0


def release_lease(connection: Connection, pipeline: int, epoch: int) -> bool:
    """Returns whether there was a lease to release."""
    released = _of(pipeline).where(_held_under(epoch)).values(holder=None, expires=None)
    return connection.execute(released).rowcount > 0


def read_lease(connection: Connection, pipeline: int) -> Lease | None:
    query = select(pipelines.c.holder, pipelines.c.epoch, _EXPIRES)
    query = query.where(pipelines.c.key == pipeline, pipelines.c.holder.is_not(None), pipelines.c.expires > now())
    row = connection.execute(query).first()
    return None if row is None else Lease(row.holder, row.epoch, row.expires)


def raise_epoch(connection: Connection, pipeline: int) -> int:
    raised = _of(pipeline).values(epoch=pipelines.c.epoch + 1, holder=None, expires=None)
    epoch: int = connection.execute(raised.returning(pipelines.c.epoch)).scalar_one()
    return epoch


def _of(pipeline: int) -> Update:
    return update(pipelines).where(pipelines.c.key == pipeline)


def _held_under(epoch: int) -> ColumnElement[bool]:
    return and_(pipelines.c.epoch == epoch, pipelines.c.holder.is_not(None))


# -- The stream's lag behind its source, as it last reported it. -------------------------------------------------------


def record_lag(connection: Connection, pipeline: int, lag_bytes: int, seconds: float) -> None:
    values = {"bytes": lag_bytes, "seconds": seconds, "at": func.clock_timestamp()}
    added = insert(lags).values(pipeline=pipeline, **values)
    connection.execute(added.on_conflict_do_update(index_elements=["pipeline"], set_=values))


def read_lags(connection: Connection, pipeline: int) -> Lag | None:
    query = select(lags.c.bytes, lags.c.seconds, seconds(lags.c.at)).where(lags.c.pipeline == pipeline)
    row = connection.execute(query).first()
    return None if row is None else Lag(*row)


# -- What the stream has measured, in spans of several lengths. --------------------------------------------------------


def record_measurement(connection: Connection, pipeline: int, measured: Measurement) -> None:
    """Joins the measurement to the present span of each resolution, and deletes spans that are not kept any more."""
    for resolution in RESOLUTIONS:
        span = cast(func.floor(seconds(now()) / resolution.seconds), BigInteger)
        values = {name: getattr(measured, name) for name in _MAXIMA + _SUMS}
        key = {"pipeline": pipeline, "resolution": resolution.seconds}
        added = insert(measurements).values(**key, span=span, **values)
        joined: dict[str, ColumnElement[Any]] = {
            name: func.greatest(measurements.c[name], added.excluded[name]) for name in _MAXIMA
        }
        joined |= {name: measurements.c[name] + added.excluded[name] for name in _SUMS}
        connection.execute(added.on_conflict_do_update(index_elements=["pipeline", "resolution", "span"], set_=joined))
        old = measurements.c.span < span - resolution.kept // resolution.seconds
        connection.execute(
            delete(measurements).where(*(measurements.c[name] == value for name, value in key.items()), old)
        )


def read_measurements(connection: Connection, pipeline: int, resolution: Resolution) -> list[Measurement]:
    columns: list[ColumnElement[Any]] = [
        measurements.c[name] for name in Measurement.__dataclass_fields__ if name != "at"
    ]
    ends = (measurements.c.span + 1) * float(resolution.seconds)
    query = select(*[*columns, ends]).where(
        measurements.c.pipeline == pipeline, measurements.c.resolution == resolution.seconds
    )
    return [Measurement(*row) for row in connection.execute(query.order_by(measurements.c.span))]


_MAXIMA = ("lag_bytes", "lag_seconds", "retained_bytes", "memory_bytes")
_SUMS = ("changes", "batches")


# -- Completion records: which task of which run completed when; kept for a limited time. ------------------------------

_KEPT = text("clock_timestamp() - interval '90 days'")


def record_completions(connection: Connection, pipeline: int, run: str, tasks: Collection[str]) -> None:
    """Also deletes old records, so that their number does not grow without limit."""
    if not tasks:
        return
    connection.execute(delete(completions).where(completions.c.pipeline == pipeline, completions.c.at < _KEPT))
    now = func.clock_timestamp()
    added = insert(completions).values([{"pipeline": pipeline, "run": run, "task": task, "at": now} for task in tasks])
    connection.execute(added.on_conflict_do_update(index_elements=["pipeline", "run", "task"], set_={"at": now}))


def read_completions(connection: Connection, pipeline: int, run: str) -> Mapping[str, float]:
    query = select(completions.c.task, completions.c.at).where(
        completions.c.pipeline == pipeline, completions.c.run == run
    )
    return {task: at.timestamp() for task, at in connection.execute(query)}


# -- Progress of each worker: monotone, in whatever order it is written. -----------------------------------------------


def read_progress(connection: Connection, pipeline: int, worker: str) -> Boundary | None:
    query = select(progress.c.boundary).where(progress.c.pipeline == pipeline, progress.c.worker == worker)
    return connection.execute(query).scalar()


def read_all_progress(connection: Connection, pipeline: int) -> dict[str, Seen]:
    found = connection.execute(select(progress).where(progress.c.pipeline == pipeline))
    return {row.worker: schema.seen_of(row) for row in found}


def record_progress(connection: Connection, pipeline: int, worker: str, seen: Seen) -> Boundary:
    added = insert(progress).values(pipeline=pipeline, worker=worker, **schema.seen_values(seen))
    later = added.excluded.boundary > progress.c.boundary
    kept = {name: case((later, added.excluded[name]), else_=progress.c[name]) for name in schema.seen_values(seen)}
    stored = added.on_conflict_do_update(index_elements=["pipeline", "worker"], set_=kept)
    furthest: Boundary = connection.execute(stored.returning(progress.c.boundary)).scalar_one()
    return furthest


def forget_progress(connection: Connection, pipeline: int, worker: str) -> None:
    connection.execute(delete(progress).where(progress.c.pipeline == pipeline, progress.c.worker == worker))


# -- The position of each table when its changes were last announced, and by which run. Runs announce no counts. -------


def record_announced(connection: Connection, pipeline: int, run: str, positions: Mapping[TableName, str]) -> None:
    if not positions:
        return
    values = [{**schema.keys(pipeline, table), "position": at, "run": run} for table, at in positions.items()]
    added = insert(announced).values(values)
    keys = ["pipeline", "table_schema", "table_name"]
    told = {"position": added.excluded.position, "run": added.excluded.run, "counted_from": None}
    connection.execute(added.on_conflict_do_update(index_elements=keys, set_=told))


def read_announced(connection: Connection, pipeline: int, run: str) -> Mapping[TableName, str]:
    query = select(announced).where(announced.c.pipeline == pipeline, announced.c.run != run)
    return {schema.name_of(row): row.position for row in connection.execute(query)}
