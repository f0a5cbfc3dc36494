"""Whether a replica has changed, for its readers, since its changes were last announced; asked from an event loop.

The state says it, and no other server is asked: how far the worker has noted a Ready table to be in the destination,
beside the position that was announced last, by whomever. Both are ``generation/position``, as `Pipeline.news` has them,
so that runs and watchers of one table do not announce the same changes twice.

With the positions go counts of the changes up to them. What has come since the last announcement is the difference, if
both were counted from the same position on, of the same copy; else nobody knows it: after a copy, after an announcement
of a run, and where a worker has died before it had noted what it had written.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from datetime import datetime
from typing import Any

from airflow_provider_pgetl.engine.positions import RowCounts
from airflow_provider_pgetl.engine.state.connecting import Place
from airflow_provider_pgetl.engine.tables import TableName

_CHANGE = """
select h.generation, t.high_water::text, v.valid_from::text,
       timestamptz '2000-01-01 00:00+00' + t.commit_time * interval '1 microsecond',
       t.counted_from::text, t.inserts, t.updates, t.deletes, t.truncates,
       a.counted_from is not distinct from t.counted_from and a.position like h.generation || '/%%',
       a.inserts, a.updates, a.deletes, a.truncates
from pgetl.pipelines p
join pgetl.tables t on t.pipeline = p.key
join pgetl.history h on (h.pipeline, h.table_schema, h.table_name, h.entry)
                      = (t.pipeline, t.table_schema, t.table_name, t.current)
left join pgetl.announced a on (a.pipeline, a.table_schema, a.table_name)
                             = (t.pipeline, t.table_schema, t.table_name)
left join lateral (
    select s.valid_from from pgetl.table_schemas s
    where (s.pipeline, s.table_schema, s.table_name) = (t.pipeline, t.table_schema, t.table_name)
    order by s.valid_from desc limit 1
) v on true
where p.id = %s and (t.table_schema, t.table_name) = (%s, %s)
and h.phase ->> 'phase' = 'Ready' and h.attempt = t.marked_attempt
and a.position is distinct from h.generation || '/' || t.high_water::text
"""
_ANNOUNCED = """
insert into pgetl.announced (pipeline, table_schema, table_name, position, run,
                             counted_from, inserts, updates, deletes, truncates)
select p.key, %s, %s, %s, %s, %s, %s, %s, %s, %s from pgetl.pipelines p where p.id = %s
on conflict (pipeline, table_schema, table_name) do update set
    position = excluded.position, run = excluded.run, counted_from = excluded.counted_from,
    inserts = excluded.inserts, updates = excluded.updates, deletes = excluded.deletes, truncates = excluded.truncates
"""


@dataclass(frozen=True, slots=True)
class Change:
    """`position`: up to where the replica has the source's changes; `schema_from`: since when it has its columns;
    `committed`: when the last transaction up to there was. `rows`: what has come since the last announcement, None if
    nobody knows; `counted`: what has come since `counted_from`."""

    generation: int
    position: str
    schema_from: str | None
    committed: datetime | None = None
    rows: RowCounts | None = None
    counted_from: str | None = None
    counted: RowCounts | None = None


async def change_of(place: Place, pipeline: str, table: TableName) -> Change | None:
    """None if nothing has changed, or the table is not Ready."""
    async with await place.connect_async(f"pgetl {pipeline} news") as connection:
        row = await (await connection.execute(_CHANGE, [pipeline, table.schema, table.name])).fetchone()
    return None if row is None else _change(*row)


def _change(
    generation: int,
    position: str,
    schema_from: str | None,
    committed: datetime | None,
    counted_from: str | None,
    *counts: Any,
) -> Change:
    """`counts`: up to now; whether those of the last announcement are comparable; these."""
    if counted_from is None:
        return Change(generation, position, schema_from)
    now, is_comparable, before = RowCounts(*counts[:4]), counts[4], counts[5:]
    rows = now - RowCounts(*before) if is_comparable else None
    return Change(generation, position, schema_from, committed, rows, counted_from, now)


async def record_announced(place: Place, pipeline: str, table: TableName, change: Change, by: str) -> None:
    position = f"{change.generation}/{change.position}"
    async with await place.connect_async(f"pgetl {pipeline} news") as connection:
        counts = [change.counted_from, *astuple(change.counted or RowCounts())]
        await connection.execute(_ANNOUNCED, [table.schema, table.name, position, by, *counts, pipeline])
