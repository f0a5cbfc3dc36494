"""Converts the engine's errors to Airflow's: whether a retry is worthwhile, and the last lines of a task's log.

A task fails with `AirflowFailException`, which uses no retries, where trying again cannot help until a person has
acted; otherwise with `PgetlFailure`, and Airflow's retries apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import Errored
from airflow_provider_pgetl.engine.model.quantities import format_duration
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.errored_tables import ErroredTable
from airflow_provider_pgetl.wording import in_airflow, with_clear

_AGAIN = "A retry of this task tries again."
_PERSON = "A retry cannot help until that is done."
_THIS = "this task"


class PgetlFailure(AirflowException):
    """A replication task failed in a way that a retry may repair."""


def failure(error: PgetlError) -> AirflowException:
    """Returns the exception to raise for an error of the engine."""
    said = in_airflow(error.message)
    if error.directive.needs_action:
        return AirflowFailException(f"{said} {with_clear(error.remedy, _THIS)} {_PERSON}")
    return PgetlFailure(f"{said} {in_airflow(error.remedy)} {_AGAIN}")


def outlasted(error: PgetlError, seconds: float) -> AirflowException:
    """Returns the exception to raise for a server that has been out of reach for longer than is tolerated."""
    lasted = f"It has been so for {format_duration(seconds)}, longer than `outage` in `Streaming(…)` allows."
    return AirflowFailException(f"{in_airflow(error.message)} {lasted} {with_clear(error.remedy, _THIS)} {_PERSON}")


def errored(table: TableName, phase: Errored, what_a_retry_does: str, cleared: str = _THIS) -> AirflowException:
    """Returns the exception to raise for a table that is Errored.

    `what_a_retry_does`: a sentence for an error that is retried automatically. `cleared`: the task to be cleared once
    the cause is settled.
    """
    said, remedy = f"{table} is Errored: {phase.reason}", phase.solution or ""
    if phase.retry_policy.kind != "timed":
        return AirflowFailException(f"{said} {with_clear(remedy, cleared)} {_PERSON}")
    return PgetlFailure(" ".join(filter(None, (said, in_airflow(remedy), what_a_retry_does))))


def errored_while_streaming(tables: Sequence[ErroredTable]) -> AirflowException:
    """Returns the exception to raise for tables that were Ready, whose own tasks have passed. It uses no retries: a
    retry would find the tables unchanged."""
    return AirflowFailException(
        f"{' '.join(map(str, tables))} The other tables are safe: the next run streams them on from where they are. "
        "The tasks of this one fail there until that is done."
    )


_ENDS = {
    "success": "has ended",
    "failed": "has failed",
    "upstream_failed": "was not started, as a task before it has failed",
    "skipped": "was skipped",
}


def not_begun(table: TableName, apply: str, ended: str) -> AirflowException:
    """Returns the exception to raise instead of resetting a table that no stream would bring back to Ready; `ended`:
    the state in which `apply` has ended."""
    return AirflowFailException(
        f"Nothing was done to {table}: it would be taken back, and not be brought to Ready again, as no worker streams "
        f"the pipeline, and `{apply}` of this run {_how(ended)}. Clear `{apply}` of this run as well; or clear "
        "this task in the run of the DAG that streams instead."
    )


def unstreamed(table: TableName, where: str, apply: str, event: Mapping[str, Any]) -> AirflowException:
    """Returns the exception to raise when a wait for a table has ended because no worker streams."""
    silence = format_duration(event["seconds"])
    return AirflowFailException(
        f"{table} is in {where}, and is not brought further in this run: no worker has streamed the pipeline for "
        f"{silence}, and `{apply}` of this run {_how(event['unstreamed'])}. Clear `{apply}`, and then this task; or "
        "leave it: the next run of the DAG goes on with the table from there."
    )


def _how(ended: str) -> str:
    return _ENDS.get(ended, "is not there any more")
