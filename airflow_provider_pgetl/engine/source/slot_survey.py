"""The replication slots that concern a pipeline, for people to look at: one connection, nothing changed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from airflow_provider_pgetl.engine.findings import Finding
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.source.connecting import connect, worker_name
from airflow_provider_pgetl.engine.source.lineage import flushed_position
from airflow_provider_pgetl.engine.source.preflight import judge_unused
from airflow_provider_pgetl.engine.source.slots import Slot, list_slots, list_unused

_CONNECT_SECONDS = 5


@dataclass(frozen=True, slots=True)
class SlotSurvey:
    """`own`: the pipeline's slots. `left_over`: what is to be said of slots in the same database that are named like
    ours, that nobody uses, and that belong to no pipeline of the same state."""

    own: tuple[Slot, ...]
    left_over: tuple[Finding, ...]
    wal_end: Boundary


def survey_slots(uri: str, pipeline: str, instances: Mapping[str, str]) -> SlotSurvey:
    """`instances`: those of all pipelines of the state, by their ids."""
    with closing(connect(uri, worker_name(pipeline, "survey"), connect_timeout=str(_CONNECT_SECONDS))) as connection:
        wal_end = flushed_position(connection)
        own = list_slots(connection, pipeline, instances.get(pipeline, ""))
        left_over = judge_unused(list_unused(connection), instances, wal_end)
        return SlotSurvey(tuple(own.values()), tuple(left_over), wal_end)
