"""A source as it is seen without a pipeline: a session, whether it is fit for any pipeline, the slots at it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from airflow_provider_pgetl.engine.config.spec import DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.model.errors import Finding, PgetlError, errors_of
from airflow_provider_pgetl.engine.model.results import SlotStatus
from airflow_provider_pgetl.engine.source import preflight
from airflow_provider_pgetl.engine.source.connecting import connect, connect_replication, worker_name
from airflow_provider_pgetl.engine.source.server import ServerFacts, flushed_position, read_server
from airflow_provider_pgetl.engine.source.slots import list_slots, list_unused, slot_status

__all__ = ["ServerFacts", "SlotSurvey", "check_source", "connect", "survey_slots", "worker_name"]

_CONNECT_SECONDS = 5

# A pipeline with only those requirements of a source that every pipeline has.
_ANY = PipelineSpec(
    "any",
    (TableSpec("any.table"),),
    SourceSpec("env:SOURCE", manage_publication=False),
    DestinationSpec("memory"),
    state_uri="env:STATE",
)


def check_source(uri: str) -> tuple[ServerFacts | None, list[Finding]]:
    """Returns what would keep every pipeline from using this source, whatever its tables: the version, settings, free
    slots and WAL senders, the role, a replication session that cannot be opened. The facts are None if the server
    cannot be reached."""
    facts, name = None, worker_name("any", "check")
    try:
        with connect(uri, name) as connection:
            facts = read_server(connection, _ANY.id)
            encoding = connection.info.parameter_status("server_encoding") or "UTF8"
        found = [*preflight.judge_server(facts, _ANY), *preflight.judge_encoding(encoding)]
        if not errors_of(found):
            connect_replication(uri, name).finish()
    except PgetlError as error:
        return facts, [Finding.of(error)]
    return facts, found


@dataclass(frozen=True, slots=True)
class SlotSurvey:
    """The slots that concern a pipeline. `own`: the pipeline's slots. `left_over`: findings on slots in the same
    database that are named like pgetl's, are not in use, and belong to no pipeline of the same state."""

    own: tuple[SlotStatus, ...]
    left_over: tuple[Finding, ...]


def survey_slots(uri: str, pipeline: str, instances: Mapping[str, str]) -> SlotSurvey:
    """Reads the slots at a source. `instances`: the instances of all pipelines of the state, by their ids."""
    with closing(connect(uri, worker_name(pipeline, "survey"), connect_timeout=str(_CONNECT_SECONDS))) as connection:
        wal_end = flushed_position(connection)
        own = list_slots(connection, pipeline, instances.get(pipeline, ""))
        left_over = preflight.judge_unused(list_unused(connection), instances, wal_end)
        return SlotSurvey(tuple(slot_status(name, slot, wal_end) for name, slot in own.items()), tuple(left_over))
