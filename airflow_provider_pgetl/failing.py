"""From the engine's errors to Airflow's: whether a retry is worth it, and what a person reads last in the log.

A task fails with `AirflowFailException`, which spends no retries, where trying again cannot help until a person has
acted; otherwise with `PgetlFailure`, and Airflow's retries apply.
"""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.phases import Errored
from airflow_provider_pgetl.engine.tables import TableName

_AGAIN = "A retry of this task tries again."
_PERSON = "A retry cannot help until that is done; then clear this task."


class PgetlFailure(AirflowException):
    """A replication task failed in a way that a retry may mend."""


def failure(error: PgetlError) -> AirflowException:
    """What to raise for an error of the engine."""
    hopeless = error.directive.retry in ("manual", "none")
    words = f"{error.message} {error.remedy} {_PERSON if hopeless else _AGAIN}"
    return AirflowFailException(words) if hopeless else PgetlFailure(words)


def errored(table: TableName, phase: Errored, what_a_retry_does: str) -> AirflowException:
    """What to raise for a table that is Errored."""
    said = f"{table} is Errored: {phase.reason} {phase.solution or ''}".rstrip()
    if phase.retry_policy.kind != "timed":
        return AirflowFailException(f"{said} {_PERSON}")
    return PgetlFailure(f"{said} {what_a_retry_does}")
