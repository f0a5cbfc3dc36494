"""The tables of the Postgres store, in the schema `pgetl` of the database that the state URI names.

They may be in the source itself. Therefore rows are small, there is no index but the keys, nothing is written that did
not change, and every table has a primary key (a table without one would refuse its updates under a publication FOR ALL
TABLES).

Several pipelines share the tables; the column `pipeline` of a row refers to `pipelines.key`, and all rows of a pipeline
are deleted with its row there. `pipelines.revision` is raised by each change of which other processes are notified,
`pipelines.changes` by every change of what store objects cache; `changes` has, for each table, present or deleted, the
last change that concerned it, and the last that concerned its schemas and its place in the destination.

`tables.current` points to the newest entry of the table's history, where the state itself is stored, once; each entry
points to its predecessor, and a predecessor that does not exist was pruned.

These definitions equal what `migrations` builds, which a test compares; a change here needs a migration there, and a
new `HEAD`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    DateTime,
    Dialect,
    Double,
    ForeignKeyConstraint,
    Identity,
    Integer,
    MetaData,
    Table,
    Text,
    TextClause,
    and_,
    bindparam,
    func,
    text,
)
from sqlalchemy.types import TypeDecorator, UserDefinedType

from airflow_provider_pgetl.engine.model.phases import TableState, phase_from_json, phase_to_json
from airflow_provider_pgetl.engine.model.positions import (
    Boundary,
    CommitLsn,
    Counted,
    HighWater,
    Lineage,
    RowCounts,
    Seen,
    Transaction,
)
from airflow_provider_pgetl.engine.model.tables import CopiedSelection, TableName
from airflow_provider_pgetl.engine.state.store import DestinationMetadata, PipelineRecord, TableRecord

SCHEMA = "pgetl"
HEAD = "0008"
VERSION_TABLE = "schema_version"
COUNTED_KINDS = ("inserts", "updates", "deletes", "truncates")


class PgLsn(UserDefinedType[str]):
    """The type pg_lsn, as text."""

    cache_ok = True
    render_bind_cast = True

    def get_col_spec(self, **_: Any) -> str:
        return "pg_lsn"


class Lsn(TypeDecorator[Boundary]):
    """A boundary, stored so that Postgres can compare it."""

    impl = PgLsn
    cache_ok = True

    def process_bind_param(self, value: Boundary | None, dialect: Dialect) -> str | None:
        del dialect
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Boundary | None:
        del dialect
        return None if value is None else Boundary.parse(value)


# Not jsonb, which refuses \u0000: the text of an error may contain it.
_JSON = JSON(none_as_null=True)
_TIME = DateTime(timezone=True)

metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(referred_table_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_name)s_key",
    },
)


def _of_pipeline() -> Column[int]:
    return Column("pipeline", BigInteger, primary_key=True)


def _of_table() -> tuple[Column[Any], ...]:
    return (
        _of_pipeline(),
        Column("table_schema", Text, primary_key=True),
        Column("table_name", Text, primary_key=True),
    )


def _counted() -> tuple[Column[Any], ...]:
    """The number of changes from `counted_from` on; null where nothing was counted."""
    return Column("counted_from", Lsn), *(Column(kind, BigInteger) for kind in COUNTED_KINDS)


def _belongs_to_pipeline() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["pipeline"], [f"{SCHEMA}.pipelines.key"], ondelete="CASCADE")


def _belongs_to_table() -> ForeignKeyConstraint:
    keys = ("pipeline", "table_schema", "table_name")
    return ForeignKeyConstraint(keys, [f"{SCHEMA}.tables.{key}" for key in keys], ondelete="CASCADE")


pipelines = Table(
    "pipelines",
    metadata,
    Column("key", BigInteger, Identity(always=True), primary_key=True),
    Column("id", Text, unique=True, nullable=False),
    Column("instance", Text, nullable=False),
    Column("created", _TIME, server_default=func.now(), nullable=False),
    Column("revision", BigInteger, server_default="0", nullable=False),
    Column("lineage", _JSON),
    Column("owner", Text),
    Column("epoch", BigInteger, server_default="0", nullable=False),
    Column("holder", Text),
    Column("expires", _TIME),
    Column("last_attempt", BigInteger, server_default="0", nullable=False),
    Column("last_generation", BigInteger, server_default="0", nullable=False),
    Column("changes", BigInteger, server_default="0", nullable=False),
    Column("paused", _TIME),
)

tables = Table(
    "tables",
    metadata,
    *_of_table(),
    Column("current", Integer, nullable=False),
    Column("relation", BigInteger),
    Column("membership", BigInteger),
    Column("terms", _JSON),
    Column("high_water", Lsn, server_default="0/0", nullable=False),
    Column("acknowledged", BigInteger, server_default="0", nullable=False),
    Column("marked_attempt", BigInteger, server_default="0", nullable=False),
    *_counted(),
    Column("commit_time", BigInteger),
    _belongs_to_pipeline(),
)

changes = Table(
    "changes",
    metadata,
    *_of_table(),
    Column("change", BigInteger, nullable=False),
    Column("described", BigInteger, nullable=False),
    _belongs_to_pipeline(),
)

history = Table(
    "history",
    metadata,
    *_of_table(),
    Column("entry", Integer, primary_key=True),
    Column("previous", Integer),
    Column("generation", BigInteger, nullable=False),
    Column("attempt", BigInteger),
    Column("copied", Lsn),
    Column("phase", _JSON, nullable=False),
    Column("at", _TIME, server_default=func.clock_timestamp(), nullable=False),
    _belongs_to_table(),
)

progress = Table(
    "progress",
    metadata,
    _of_pipeline(),
    Column("worker", Text, primary_key=True),
    Column("boundary", Lsn, nullable=False),
    Column("quiet_from", Lsn),
    Column("commit_lsn", Lsn),
    Column("xid", BigInteger),
    Column("commit_time", BigInteger),
    Column("owned_lsn", Lsn),
    Column("owned_xid", BigInteger),
    Column("owned_time", BigInteger),
    Column("server", BigInteger),
    _belongs_to_pipeline(),
)

attempts = Table(
    "attempts",
    metadata,
    _of_pipeline(),
    Column("attempt", BigInteger, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("expires", _TIME, nullable=False),
    _belongs_to_pipeline(),
)

completions = Table(
    "completions",
    metadata,
    _of_pipeline(),
    Column("run", Text, primary_key=True),
    Column("task", Text, primary_key=True),
    Column("at", _TIME, nullable=False),
    _belongs_to_pipeline(),
)

announced = Table(
    "announced",
    metadata,
    *_of_table(),
    Column("position", Text, nullable=False),
    Column("run", Text, nullable=False),
    *_counted(),
    _belongs_to_pipeline(),
)

lags = Table(
    "lags",
    metadata,
    _of_pipeline(),
    Column("bytes", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("at", _TIME, nullable=False),
    _belongs_to_pipeline(),
)

measurements = Table(
    "measurements",
    metadata,
    _of_pipeline(),
    Column("resolution", Integer, primary_key=True),
    Column("span", BigInteger, primary_key=True),
    Column("lag_bytes", BigInteger, nullable=False),
    Column("lag_seconds", Double, nullable=False),
    Column("changes", BigInteger, nullable=False),
    Column("batches", BigInteger, nullable=False),
    Column("retained_bytes", BigInteger, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    _belongs_to_pipeline(),
)

verifications = Table(
    "verifications",
    metadata,
    *_of_table(),
    Column("number", BigInteger, Identity(always=True), primary_key=True),
    Column("differs", Boolean, nullable=False),
    Column("result", _JSON, nullable=False),
    Column("rows", _JSON, nullable=False),
    _belongs_to_table(),
)

table_schemas = Table(
    "table_schemas",
    metadata,
    *_of_table(),
    Column("valid_from", Lsn, primary_key=True),
    Column("definition", _JSON, nullable=False),
    Column("recorded", _TIME, server_default=func.now()),
    _belongs_to_pipeline(),
)

destination_tables = Table(
    "destination_tables",
    metadata,
    *_of_table(),
    Column("destination_schema", Text, nullable=False),
    Column("destination_name", Text, nullable=False),
    Column("snapshot", Lsn, nullable=False),
    Column("applied", Boolean, nullable=False),
    Column("details", _JSON, nullable=False),
    _belongs_to_pipeline(),
)


# -- Conversion between stored rows and the engine's plain data. Pure. -------------------------------------------------

AnyRow = Any
"""The columns of a row depend on the query; the type checker cannot check them."""


def of_table(stored: Table, pipeline: int, name: TableName) -> ColumnElement[bool]:
    """Returns the condition that a row of `stored` belongs to the table."""
    columns = stored.c
    return and_(columns.pipeline == pipeline, columns.table_schema == name.schema, columns.table_name == name.name)


def of_tables(stored: Table, pipeline: int, names: Iterable[TableName]) -> ColumnElement[bool]:
    """Returns the same for several tables at once; the names are two parameters, however many there are."""
    return and_(stored.c.pipeline == pipeline, _among(stored, list(names)))


def _among(stored: Table, names: Sequence[TableName]) -> TextClause:
    row = f"({stored.fullname}.table_schema, {stored.fullname}.table_name)"
    condition = text(f"{row} in (select * from unnest(cast(:schemas as text[]), cast(:names as text[])))")
    return condition.bindparams(
        bindparam("schemas", [name.schema for name in names], unique=True),
        bindparam("names", [name.name for name in names], unique=True),
    )


def names_as_arrays(names: Iterable[TableName]) -> dict[str, list[str]]:
    """Returns the parameters `schemas` and `names`, for `unnest`."""
    listed = list(names)
    return {"schemas": [name.schema for name in listed], "names": [name.name for name in listed]}


def keys(pipeline: int, name: TableName) -> dict[str, Any]:
    return {"pipeline": pipeline, "table_schema": name.schema, "table_name": name.name}


def name_of(row: AnyRow) -> TableName:
    return TableName(row.table_schema, row.table_name)


def state_values(state: TableState) -> dict[str, Any]:
    return {
        "generation": state.generation,
        "attempt": state.attempt,
        "copied": state.copied,
        "phase": phase_to_json(state.phase),
    }


def state_of(row: AnyRow) -> TableState:
    return TableState(phase_from_json(row.phase), row.generation, row.attempt, row.copied)


def record_of(row: AnyRow) -> TableRecord:
    return TableRecord(
        table=name_of(row),
        state=state_of(row),
        relation=row.relation,
        membership=row.membership,
        selection=None if row.terms is None else CopiedSelection.from_json(row.terms),
        high_water=HighWater(row.marked_attempt, row.high_water, _counted_of(row)),
        acknowledged=row.acknowledged,
    )


def _counted_of(row: AnyRow) -> Counted | None:
    if row.counted_from is None:
        return None
    counts = RowCounts(row.inserts, row.updates, row.deletes, row.truncates)
    return Counted(row.counted_from, row.high_water, counts, row.commit_time)


def counted_as_arrays(marks: Iterable[HighWater]) -> dict[str, Any]:
    """Returns the counts of several tables, as parameters for a statement; null for a mark without counts."""
    found = [mark.counted for mark in marks]
    return {
        "counted_from": [None if one is None else str(one.since) for one in found],
        **{kind: [None if one is None else getattr(one.rows, kind) for one in found] for kind in COUNTED_KINDS},
        "commit_times": [None if one is None else one.commit_time for one in found],
    }


def seen_values(seen: Seen) -> dict[str, Any]:
    lsn, xid, time = _transaction_values(seen.last)
    owned_lsn, owned_xid, owned_time = _transaction_values(seen.owned)
    return {
        "boundary": seen.upto,
        "quiet_from": seen.quiet_from,
        "commit_lsn": lsn,
        "xid": xid,
        "commit_time": time,
        "owned_lsn": owned_lsn,
        "owned_xid": owned_xid,
        "owned_time": owned_time,
        "server": seen.server,
    }


def _transaction_values(seen: Transaction | None) -> tuple[Boundary | None, int | None, int | None]:
    return (None, None, None) if seen is None else (Boundary(seen.commit_lsn), seen.xid, seen.commit_time)


def seen_of(row: AnyRow) -> Seen:
    last = None if row.xid is None else Transaction(CommitLsn(row.commit_lsn.lsn), row.xid, row.commit_time)
    owned = None if row.owned_xid is None else Transaction(CommitLsn(row.owned_lsn.lsn), row.owned_xid, row.owned_time)
    return Seen(row.boundary, row.quiet_from or row.boundary, last, owned, row.server or 0)


def pipeline_of(row: AnyRow) -> PipelineRecord:
    paused = None if row.paused is None else row.paused.timestamp()
    return PipelineRecord(row.id, row.instance, row.epoch, _lineage_of(row.lineage), row.owner, paused)


def metadata_of(row: AnyRow) -> DestinationMetadata:
    destination = TableName(row.destination_schema, row.destination_name)
    return DestinationMetadata(destination, row.snapshot, row.applied, row.details)


def lineage_json(lineage: Lineage) -> dict[str, Any]:
    return {
        "system": lineage.system,
        "timeline": lineage.timeline,
        "switch_points": [[timeline, str(boundary)] for timeline, boundary in lineage.switch_points],
        "database": lineage.database,
        "publication": lineage.publication,
        "ended": lineage.ended,
    }


def _lineage_of(data: dict[str, Any] | None) -> Lineage | None:
    if data is None:
        return None
    switches = tuple((timeline, Boundary.parse(text)) for timeline, text in data["switch_points"])
    return Lineage(**{**data, "switch_points": switches})
