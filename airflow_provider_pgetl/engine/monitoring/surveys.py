"""What a page displays of a pipeline: its tables with their places and counts, and its history; and of one table, all
phases that it went through and the versions of its schema.

People wait for the page, so a server that does not answer is given up after a few seconds. A state database that an
earlier version has made lacks some of what is read here; that is left out then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, LiteralString

import psycopg

from airflow_provider_pgetl.engine.model.phases import Phase, TableState, phase_from_json
from airflow_provider_pgetl.engine.model.positions import Boundary, RowCounts
from airflow_provider_pgetl.engine.model.results import RESOLUTIONS, Measurement, Resolution
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema, matches
from airflow_provider_pgetl.engine.model.verification import TableVerified
from airflow_provider_pgetl.engine.monitoring.snapshots import PipelineSnapshot, SaidLag, asking, read_snapshot

_CONNECT_SECONDS = 5
_INSTANCES = "select id, instance from pgetl.pipelines"
_PLACES = """
select table_schema, table_name, destination_schema, destination_name, details
from pgetl.destination_tables where pipeline = %s
"""
_COUNTS = """
select table_schema, table_name, to_jsonb(t) from pgetl.tables t where pipeline = %s
"""  # the state may be of a version without the counts
_MEASURED = """
select lag_bytes, lag_seconds, changes, batches, retained_bytes, memory_bytes, ((span + 1) * resolution)::float8
from pgetl.measurements where pipeline = %s and resolution = %s order by span
"""
_HISTORY = """
with recursive entries as (
    select h.*, 1 as place from pgetl.tables t
    join pgetl.history h on (h.pipeline, h.table_schema, h.table_name, h.entry)
                          = (t.pipeline, t.table_schema, t.table_name, t.current)
    where (t.pipeline, t.table_schema, t.table_name) = (%s, %s, %s)
    union all
    select h.*, place + 1 from entries e
    join pgetl.history h on (h.pipeline, h.table_schema, h.table_name, h.entry)
                          = (e.pipeline, e.table_schema, e.table_name, e.previous)
    where place < 100
)
select phase, generation, attempt, extract(epoch from at)::float8 from entries order by place desc
"""
_VERIFIED = """
select distinct on (table_schema, table_name) result from pgetl.verifications where pipeline = %s
order by table_schema, table_name, number desc
"""
_VERIFICATIONS = """
select result from pgetl.verifications where (pipeline, table_schema, table_name) = (%s, %s, %s) order by number
"""
_VERSIONS = """
select valid_from::text, definition from pgetl.table_schemas
where (pipeline, table_schema, table_name) = (%s, %s, %s) order by valid_from
"""
_USES = """
select terms -> 'uses' from pgetl.tables where (pipeline, table_schema, table_name) = (%s, %s, %s)
"""


@dataclass(frozen=True, slots=True)
class SurveyedTable:
    """`age`: for how many seconds it has been in its phase. `rows`: those of its last finished copy. `counts`: the
    changes that came to the destination since they are counted. `verified`: the result of its last verification,
    without the rows that differed."""

    table: TableName
    state: TableState
    age: float
    destination: TableName | None = None
    rows: int | None = None
    counts: RowCounts = field(default_factory=RowCounts)
    verified: TableVerified | None = None

    @property
    def changes(self) -> int:
        """The number of rows that were changed."""
        return self.counts.inserts + self.counts.updates + self.counts.deletes


@dataclass(frozen=True, slots=True)
class PipelineSurvey:
    """`streamed`: whether a worker holds the lease. `lag` is that of the stream, and so of every table that is Ready.
    `measured`: the history of the stream in `resolution`, up to `now` of the store's clock. `instances`: those of all
    pipelines in this state database, by their ids."""

    streamed: bool
    lag: SaidLag | None
    tables: tuple[SurveyedTable, ...]
    paused: bool = False
    measured: tuple[Measurement, ...] = ()
    resolution: Resolution = RESOLUTIONS[0]
    now: float = 0.0
    instances: Mapping[str, str] = field(default_factory=dict)


def survey(uri: str, pipeline: str, resolution: Resolution = RESOLUTIONS[0]) -> PipelineSurvey | None:
    """Returns None if the database has no such pipeline."""
    with asking(uri, pipeline, "survey", _CONNECT_SECONDS) as connection:
        found = None if connection is None else read_snapshot(connection, pipeline)
        if connection is None or found is None:
            return None
        key, seen = found
        places = {TableName(*row[:2]): row[2:] for row in connection.execute(_PLACES, [key])}
        counts = {TableName(*row[:2]): _counts(row[2]) for row in connection.execute(_COUNTS, [key])}
        measured = _measured(connection, key, resolution)
        instances = dict(connection.execute(_INSTANCES).fetchall())
        verified = {one.table: one for one in _verified(connection, _VERIFIED, key)}
    tables = tuple(
        replace(_surveyed(table, seen, places.get(table), counts.get(table, RowCounts())), verified=verified.get(table))
        for table in sorted(seen.states)
    )
    return PipelineSurvey(seen.streamed, seen.lag, tables, seen.paused, measured, resolution, seen.now, instances)


def _measured(connection: psycopg.Connection[Any], key: int, resolution: Resolution) -> tuple[Measurement, ...]:
    if not _has(connection, "measurements"):
        return ()
    return tuple(Measurement(*row) for row in connection.execute(_MEASURED, [key, resolution.seconds]))


def _verified(connection: psycopg.Connection[Any], query: LiteralString, *of: Any) -> list[TableVerified]:
    if not _has(connection, "verifications"):
        return []
    return [TableVerified.from_json(result) for (result,) in connection.execute(query, of)]


def _has(connection: psycopg.Connection[Any], table: str) -> bool:
    known = connection.execute("select to_regclass(%s) is not null", [f"pgetl.{table}"]).fetchone()
    return bool(known and known[0])


def _counts(row: Mapping[str, Any]) -> RowCounts:
    return RowCounts(*(row.get(kind) or 0 for kind in ("inserts", "updates", "deletes", "truncates")))


def _surveyed(
    table: TableName, seen: PipelineSnapshot, place: tuple[Any, ...] | None, counts: RowCounts
) -> SurveyedTable:
    age = max(0.0, seen.now - seen.since[table])
    if place is None:
        return SurveyedTable(table, seen.states[table], age, counts=counts)
    schema, name, details = place
    rows = (details or {}).get("rows")
    return SurveyedTable(table, seen.states[table], age, TableName(schema, name), rows, counts)


# -- One table. --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PhaseEntry:
    """A phase that the table took at `at`, and how many seconds it stayed in it."""

    phase: Phase
    generation: int
    attempt: int | None
    at: float
    lasted: float


@dataclass(frozen=True, slots=True)
class TableHistory:
    """The last phases of a table, the present one last; the versions of its schema with the positions from which they
    are valid; the results of its verifications that are kept, the latest last. `transformed`: the columns, or patterns
    of columns, for which there are rules, with the transformers."""

    phases: tuple[PhaseEntry, ...] = ()
    versions: tuple[tuple[Boundary, TableSchema], ...] = ()
    verifications: tuple[TableVerified, ...] = ()
    transformed: Mapping[str, str] = field(default_factory=dict)

    def transformer_of(self, column: str) -> str:
        """Returns the name of the transformer; empty where there is none."""
        found = next((use for pattern, use in self.transformed.items() if matches(pattern, column)), "")
        return "" if found == "keep" else found


def survey_history(uri: str, pipeline: str, table: TableName) -> TableHistory:
    """Returns what is stored of the table; nothing if the pipeline does not have it."""
    with asking(uri, pipeline, "survey", _CONNECT_SECONDS) as connection:
        found = None if connection is None else read_snapshot(connection, pipeline)
        if connection is None or found is None:
            return TableHistory()
        key, seen = found
        name = [key, table.schema, table.name]
        entries = connection.execute(_HISTORY, name).fetchall()
        versions = connection.execute(_VERSIONS, name).fetchall()
        verified = tuple(_verified(connection, _VERIFICATIONS, *name))
        uses = connection.execute(_USES, name).fetchone()
    ends = [*(entry[3] for entry in entries[1:]), seen.now][: len(entries)]
    phases = tuple(
        PhaseEntry(phase_from_json(phase), generation, attempt, at, max(0.0, end - at))
        for (phase, generation, attempt, at), end in zip(entries, ends, strict=True)
    )
    valid_from = tuple((Boundary.parse(at), TableSchema.from_json(one)) for at, one in versions)
    return TableHistory(phases, valid_from, verified, (uses[0] if uses else None) or {})
