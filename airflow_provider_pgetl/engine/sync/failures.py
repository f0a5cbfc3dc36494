"""From an error to the Errored phase that it puts a table into."""

from __future__ import annotations

from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.phases import RetryKind, RetryPolicy
from airflow_provider_pgetl.engine.sync.core import Failure

RETRY_SECONDS = 30.0


def failure_of(error: PgetlError, now: float) -> Failure:
    """`now` in seconds since the Unix epoch; a timed retry counts from it. A library may quote any bytes, and the
    state keeps no text with a zero in it."""
    return Failure(error.message.replace("\0", ""), error.remedy, _policy(error, now))


def _policy(error: PgetlError, now: float) -> RetryPolicy:
    retry = error.directive.retry
    if retry in ("timed", "in_place"):
        return RetryPolicy("timed", now + RETRY_SECONDS)
    if retry == "copy":
        return RetryPolicy("timed", now + RETRY_SECONDS, anew=True)
    kind: RetryKind = "none" if retry == "none" else "manual"
    return RetryPolicy(kind)
