"""Whether a replica has changed, for its readers, since its changes were last announced; asked from an event loop.

The state says it, and no other server is asked: how far the worker has noted a Ready table to be in the destination,
beside the position that was announced last, by whomever. Both are ``generation/position``, as `Pipeline.news` has them,
so that runs and watchers of one table do not announce the same changes twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_pgetl.engine.state.connecting import Place
from airflow_provider_pgetl.engine.tables import TableName

_CHANGE = """
select h.generation, t.high_water::text, v.valid_from::text
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
insert into pgetl.announced (pipeline, table_schema, table_name, position, run)
select p.key, %s, %s, %s, %s from pgetl.pipelines p where p.id = %s
on conflict (pipeline, table_schema, table_name) do update set position = excluded.position, run = excluded.run
"""


@dataclass(frozen=True, slots=True)
class Change:
    """`position`: up to where the replica has the source's changes; `schema_from`: since when it has its columns."""

    generation: int
    position: str
    schema_from: str | None


async def change_of(place: Place, pipeline: str, table: TableName) -> Change | None:
    """None if nothing has changed, or the table is not Ready."""
    async with await place.connect_async(f"pgetl {pipeline} news") as connection:
        row = await (await connection.execute(_CHANGE, [pipeline, table.schema, table.name])).fetchone()
    return None if row is None else Change(*row)


async def record_announced(place: Place, pipeline: str, table: TableName, change: Change, by: str) -> None:
    position = f"{change.generation}/{change.position}"
    async with await place.connect_async(f"pgetl {pipeline} news") as connection:
        await connection.execute(_ANNOUNCED, [table.schema, table.name, position, by, pipeline])
