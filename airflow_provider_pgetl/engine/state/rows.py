"""Between stored rows and the engine's plain data. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Table, TextClause, and_, bindparam, text

from airflow_provider_pgetl.engine.lineage import Lineage
from airflow_provider_pgetl.engine.phases import TableState, phase_from_json, phase_to_json
from airflow_provider_pgetl.engine.positions import Boundary, CommitLsn, Counted, HighWater, RowCounts
from airflow_provider_pgetl.engine.recognition import Seen, Transaction
from airflow_provider_pgetl.engine.state.protocol import DestinationMetadata, PipelineRecord, TableRecord
from airflow_provider_pgetl.engine.state.tables import COUNTED_KINDS
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.engine.terms import Terms

AnyRow = Any
"""What a row's columns are is known to the query, not to the type checker."""


def of_table(stored: Table, pipeline: int, name: TableName) -> ColumnElement[bool]:
    """The condition that a row of `stored` is about that table."""
    columns = stored.c
    return and_(columns.pipeline == pipeline, columns.table_schema == name.schema, columns.table_name == name.name)


def of_tables(stored: Table, pipeline: int, names: Iterable[TableName]) -> ColumnElement[bool]:
    """The same for several tables at once; the names are two parameters, however many there are."""
    return and_(stored.c.pipeline == pipeline, _among(stored, list(names)))


def _among(stored: Table, names: Sequence[TableName]) -> TextClause:
    row = f"({stored.fullname}.table_schema, {stored.fullname}.table_name)"
    condition = text(f"{row} in (select * from unnest(cast(:schemas as text[]), cast(:names as text[])))")
    return condition.bindparams(
        bindparam("schemas", [name.schema for name in names], unique=True),
        bindparam("names", [name.name for name in names], unique=True),
    )


def names_as_arrays(names: Iterable[TableName]) -> dict[str, list[str]]:
    """The parameters `schemas` and `names`, for `unnest`."""
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
        terms=None if row.terms is None else Terms.from_json(row.terms),
        high_water=HighWater(row.marked_attempt, row.high_water, _counted_of(row)),
        acknowledged=row.acknowledged,
    )


def _counted_of(row: AnyRow) -> Counted | None:
    if row.counted_from is None:
        return None
    counts = RowCounts(row.inserts, row.updates, row.deletes, row.truncates)
    return Counted(row.counted_from, row.high_water, counts, row.commit_time)


def counted_as_arrays(marks: Iterable[HighWater]) -> dict[str, Any]:
    """Those of several tables, for a statement; a mark with which nothing was counted has nulls."""
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
