"""Between stored rows and the engine's plain data. Pure."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Table, and_, tuple_

from airflow_provider_pgetl.engine.lineage import Lineage
from airflow_provider_pgetl.engine.phases import TableState, phase_from_json, phase_to_json
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state.protocol import DestinationMetadata, PipelineRecord, TableRecord
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.engine.terms import Terms

AnyRow = Any
"""What a row's columns are is known to the query, not to the type checker."""


def of_table(stored: Table, pipeline: int, name: TableName) -> ColumnElement[bool]:
    """The condition that a row of `stored` is about that table."""
    columns = stored.c
    return and_(columns.pipeline == pipeline, columns.table_schema == name.schema, columns.table_name == name.name)


def of_tables(stored: Table, pipeline: int, names: Any) -> ColumnElement[bool]:
    """The same for several tables at once."""
    columns = stored.c
    wanted = [(name.schema, name.name) for name in names]
    return and_(columns.pipeline == pipeline, tuple_(columns.table_schema, columns.table_name).in_(wanted))


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
        high_water=row.high_water,
        acknowledged=row.acknowledged,
    )


def pipeline_of(row: AnyRow) -> PipelineRecord:
    return PipelineRecord(row.id, row.instance, row.epoch, _lineage_of(row.lineage))


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
    }


def _lineage_of(data: dict[str, Any] | None) -> Lineage | None:
    if data is None:
        return None
    switches = tuple((timeline, Boundary.parse(text)) for timeline, text in data["switch_points"])
    return Lineage(**{**data, "switch_points": switches})
