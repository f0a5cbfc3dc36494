"""The replication page for programs: what it shows, and what it does, as JSON below `/pgetl/api/v1`.

Described by OpenAPI at `/pgetl/api/v1/openapi.json`. Requests are authenticated as those to Airflow's own API are, and
the same users see and may do the same as on the page. Times are seconds, positions are as PostgreSQL writes them.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, FastAPI, HTTPException
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from airflow_provider_pgetl import __version__
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import Errored, phase_name
from airflow_provider_pgetl.engine.model.results import Measurement, SlotStatus
from airflow_provider_pgetl.engine.model.tables import TableName, parse_table, written
from airflow_provider_pgetl.engine.model.verification import TableVerified
from airflow_provider_pgetl.engine.monitoring.surveys import SurveyedTable
from airflow_provider_pgetl.naming import MOUNT
from airflow_provider_pgetl.ui import actions
from airflow_provider_pgetl.ui.actions import Action, EditableDags
from airflow_provider_pgetl.ui.found import (
    SPANS,
    Found,
    ReadablePipelines,
    history_of,
    look_at,
    meant_by,
    table_of,
    what_to_do,
    with_slots,
)

router = APIRouter(prefix="/api/v1", default_response_class=JSONResponse)


class LagOut(BaseModel):
    bytes: int
    seconds: float = Field(description="The age of the oldest commit that is not in the destination.")
    age: float = Field(description="How long ago the worker reported it.")


class PipelineOut(BaseModel):
    id: str
    dag_id: str
    state: str = Field(description="streaming, not streaming, paused, has not run yet, or unknown.")
    trouble: str | None = Field(description="Why the state is unknown.")
    age: float = Field(description="How long ago the rest was read, where there is trouble.")
    lag: LagOut | None
    phases: dict[str, int] = Field(description="How many tables are in which phase.")
    errored: list[str]


class CountsOut(BaseModel):
    inserts: int
    updates: int
    deletes: int
    truncates: int


class VerifiedOut(BaseModel):
    verdict: str = Field(description="equal, different, or not compared.")
    position: str | None = Field(description="Every change at the source before it was to be in the destination.")
    at: float | None
    rows: int
    missing: int
    extra: int
    changed: int
    share: float = Field(description="The share of the keys that was compared.")
    why: str | None


class TableOut(BaseModel):
    table: str
    destination: str | None
    phase: str
    age: float = Field(description="For how long it has been in the phase.")
    rows: int | None = Field(description="Those of the last finished copy.")
    changes: CountsOut = Field(description="Those that came to the destination since they are counted.")
    reason: str | None = Field(description="Why it is Errored.")
    remedy: str | None
    verified: VerifiedOut | None = Field(description="The last verification.")


class MeasurementOut(BaseModel):
    at: float
    lag_bytes: int
    lag_seconds: float
    changes: int
    batches: int
    retained_bytes: int
    memory_bytes: int


class SlotOut(BaseModel):
    name: str
    active: bool
    retained_bytes: int | None
    lost: str | None


class PipelineDetails(PipelineOut):
    tables: list[TableOut]
    span_seconds: int = Field(description="The length of time that a measurement is of.")
    measurements: list[MeasurementOut]
    slots: list[SlotOut] | None = Field(description="Null where the source could not be asked.")


class PhaseOut(BaseModel):
    phase: str
    at: float
    lasted: float
    generation: int
    attempt: int | None


class ColumnOut(BaseModel):
    name: str
    type: str


class VersionOut(BaseModel):
    valid_from: str
    columns: list[ColumnOut]
    key: list[str]


class TableDetails(TableOut):
    phases: list[PhaseOut] = Field(description="The last ones, the present one last.")
    versions: list[VersionOut]
    verifications: list[VerifiedOut] = Field(description="Those that are kept, the latest last.")


class ActionIn(BaseModel):
    action: Action
    table: str | None = Field(None, description="schema.table, for copy_again.")
    dag_id: str | None = Field(None, description="Where several DAGs declare the pipeline.")


class ActionOut(BaseModel):
    action: Action
    pipeline: str
    table: str | None


@router.get("/pipelines")
def pipelines(known: ReadablePipelines) -> list[PipelineOut]:
    """Returns the pipelines of the DAGs that the user may read."""
    return [PipelineOut(**_pipeline(found)) for found in look_at(known)]


@router.get("/pipelines/{pipeline}")
def pipeline(
    pipeline: str, known: ReadablePipelines, editable: EditableDags, span: str = "hour"
) -> list[PipelineDetails]:
    """Returns a pipeline with its tables, slots and history over a span: hour, day or weeks. More than one only where
    several DAGs declare the id."""
    if span not in SPANS:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"A span is one of {', '.join(SPANS)}.")
    meant = meant_by(known, pipeline)
    looked = zip(look_at(meant, SPANS[span]), meant, strict=True)
    return [_details(with_slots(found, one, one.dag_id in editable)) for found, one in looked]


@router.get("/pipelines/{pipeline}/tables/{table}")
def table(pipeline: str, table: str, known: ReadablePipelines) -> TableDetails:
    """Returns a table, the phases that it went through, and the versions of its schema."""
    one, _, surveyed = table_of(known, pipeline, _parsed(table))
    history = history_of(one, surveyed.table)
    phases = [
        PhaseOut(
            phase=phase_name(entry.phase),
            at=entry.at,
            lasted=entry.lasted,
            generation=entry.generation,
            attempt=entry.attempt,
        )
        for entry in history.phases
    ]
    versions = [
        VersionOut(
            valid_from=str(at),
            columns=[ColumnOut(name=column.name, type=column.sql_type) for column in schema.columns],
            key=list(schema.key),
        )
        for at, schema in history.versions
    ]
    verifications = [_verified(one) for one in history.verifications]
    return TableDetails(**_table(surveyed), phases=phases, versions=versions, verifications=verifications)


@router.post("/pipelines/{pipeline}/actions", dependencies=[Depends(actions.expect_same_site)])
def act(
    pipeline: str, asked: ActionIn, known: ReadablePipelines, editable: EditableDags, user: GetUserDep
) -> ActionOut:
    """Acts, for users who may edit the DAG."""
    one = actions.expect_editable(meant_by(known, pipeline), editable, asked.dag_id)
    named = _parsed(asked.table) if asked.table is not None and asked.action.is_of_table else None
    actions.carry_out(asked.action, one, named, user)
    return ActionOut(action=asked.action, pipeline=one.id, table=None if named is None else written(named))


@router.get("/openapi.json", include_in_schema=False)
def description() -> dict[str, Any]:
    """Returns the description of this API."""
    described = FastAPI()
    described.include_router(router, prefix=MOUNT)
    return get_openapi(title="pgetl", version=__version__, routes=described.routes, description=__doc__)


def _parsed(text: str) -> TableName:
    try:
        return parse_table(text)
    except (PgetlError, ValueError) as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None


def _pipeline(found: Found) -> dict[str, Any]:
    lag = None if found.survey is None else found.survey.lag
    return {
        "id": found.id,
        "dag_id": found.dag_id,
        "state": found.state,
        "trouble": found.trouble,
        "age": found.age,
        "lag": None if lag is None else LagOut(bytes=lag.bytes, seconds=lag.seconds, age=lag.age),
        "phases": dict(found.phases),
        "errored": [written(each.table) for each in found.errored_tables],
    }


def _details(found: Found) -> PipelineDetails:
    survey = found.survey
    return PipelineDetails(
        **_pipeline(found),
        tables=[TableOut(**_table(each)) for each in found.tables],
        span_seconds=0 if survey is None else survey.resolution.seconds,
        measurements=[] if survey is None else [_measurement(each) for each in survey.measured],
        slots=None if found.slots is None else [_slot(each) for each in found.slots.own],
    )


def _table(surveyed: SurveyedTable) -> dict[str, Any]:
    phase, counts = surveyed.state.phase, surveyed.counts
    return {
        "table": written(surveyed.table),
        "destination": None if surveyed.destination is None else written(surveyed.destination),
        "phase": phase_name(phase),
        "age": surveyed.age,
        "rows": surveyed.rows,
        "changes": CountsOut(
            inserts=counts.inserts, updates=counts.updates, deletes=counts.deletes, truncates=counts.truncates
        ),
        "reason": phase.reason if isinstance(phase, Errored) else None,
        "remedy": what_to_do(surveyed) or None,
        "verified": None if surveyed.verified is None else _verified(surveyed.verified),
    }


def _verified(one: TableVerified) -> VerifiedOut:
    return VerifiedOut(
        verdict=one.verdict,
        position=None if one.position is None else str(one.position),
        at=one.at,
        rows=one.rows,
        missing=one.missing,
        extra=one.extra,
        changed=one.changed,
        share=one.share,
        why=one.why,
    )


def _measurement(one: Measurement) -> MeasurementOut:
    return MeasurementOut(
        at=one.at,
        lag_bytes=one.lag_bytes,
        lag_seconds=one.lag_seconds,
        changes=one.changes,
        batches=one.batches,
        retained_bytes=one.retained_bytes,
        memory_bytes=one.memory_bytes,
    )


def _slot(slot: SlotStatus) -> SlotOut:
    return SlotOut(name=slot.name, active=slot.active, retained_bytes=slot.retained_bytes, lost=slot.lost)
