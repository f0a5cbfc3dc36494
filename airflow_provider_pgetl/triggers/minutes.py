"""One line a minute: what a log in Airflow gets of the reports of a stream, or of a copy.

A trigger's log lives as long as the trigger, which may be for ever; detail is in the store and on the replication page.
Changes of phase are rare, and logged as they come; a table that becomes Errored as an error, with its remedy. Sentences
of warning are rare as well, but one that is repeated comes once a minute: a stream that cannot reach a server tries
every few seconds.
"""

from __future__ import annotations

import time
from typing import Protocol

from airflow_provider_pgetl.engine.phases import phase_name
from airflow_provider_pgetl.engine.quantities import format_size
from airflow_provider_pgetl.engine.reports import CopyProgressed, Noted, PhaseReached, Report, StreamProgressed
from airflow_provider_pgetl.errored_tables import errored_table
from airflow_provider_pgetl.wording import in_airflow

_MINUTE = 60.0


class Log(Protocol):
    def info(self, message: str, /, *arguments: object) -> object: ...

    def warning(self, message: str, /, *arguments: object) -> object: ...

    def error(self, message: str, /, *arguments: object) -> object: ...


class Minutes:
    """An observer."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._due = 0.0
        self._changes = 0
        self._since = time.monotonic()
        self._said: dict[str, float] = {}

    def observe(self, report: Report) -> None:
        match report:
            case PhaseReached(table, state) if errored := errored_table(table, state, 0.0):
                self._log.error("%s", errored)
            case PhaseReached(table, state):
                self._log.info("%s: %s", table, phase_name(state.phase))
            case Noted("info", message):
                self._log.info("%s", in_airflow(message))
            case Noted(_, message):
                if self._is_news(message):
                    self._log.warning("%s", in_airflow(message))
            case StreamProgressed(stream="apply"):
                self._progress(report)
            case CopyProgressed():
                self._copy(report)
            case _:
                pass

    def _is_news(self, message: str) -> bool:
        now = time.monotonic()
        self._said = {said: at for said, at in self._said.items() if now - at < _MINUTE}
        return self._said.setdefault(message, now) == now

    def _copy(self, report: CopyProgressed) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _MINUTE
        done, total = format_size(report.bytes_done), format_size(report.bytes_total)
        self._log.info("%s: %s of %s copied, %d rows", report.table, done, total, report.rows)

    def _progress(self, report: StreamProgressed) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        rate = (report.changes - self._changes) / max(now - self._since, 1.0)
        self._due, self._since, self._changes = now + _MINUTE, now, report.changes
        words = "%d changes applied, %.0f a second; %s behind (%.1f s); durable up to %s"
        lag = format_size(report.lag_bytes)
        self._log.info(words, report.changes, rate, lag, report.lag_seconds, report.durable)
