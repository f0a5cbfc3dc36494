"""Turns the engine's reports into Airflow's metrics (statsd or OpenTelemetry, whichever is configured) and into log
lines.

    pgetl.workers_started                       counter     pipeline
    pgetl.lag_bytes, pgetl.lag_seconds          gauges      pipeline
    pgetl.pause_seconds                         gauge       pipeline
    pgetl.changes, pgetl.batches, pgetl.missed  counters    pipeline, stream (apply or catch_up)
    pgetl.copied_rows, pgetl.copied_bytes       gauges      pipeline, table
    pgetl.phase_reached                         counter     pipeline, table, phase
    pgetl.tables_errored                        gauge       pipeline

The last column lists the tags. A plain statsd supports none, so while `[metrics] legacy_names_on` holds, as it does by
default, each metric is sent a second time under a name that contains the values of the tags: ``pgetl.shop.lag_bytes``,
``pgetl.shop.public__orders.copied_rows``. The tag `table` is the name as declared.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any, Protocol

from airflow_provider_pgetl.engine.model.phases import phase_name
from airflow_provider_pgetl.engine.model.quantities import format_size
from airflow_provider_pgetl.engine.model.reports import CopyProgressed, Noted, PhaseReached, Report, StreamProgressed
from airflow_provider_pgetl.errored_tables import errored_table
from airflow_provider_pgetl.running_airflow import has_legacy_names, stats
from airflow_provider_pgetl.wording import in_airflow

_COUNTED = ("changes", "batches", "missed")
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


class Metrics:
    """An observer that sends metrics. The counts in a stream's reports start at zero in each process that reports; they
    are sent as increments."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._counted: dict[tuple[str, str], int] = {}

    def observe(self, report: Report) -> None:
        match report:
            case StreamProgressed():
                self._stream(report)
            case CopyProgressed(table, _, bytes_done, _, rows):
                self._gauge("copied_rows", rows, table=str(table))
                self._gauge("copied_bytes", bytes_done, table=str(table))
            case PhaseReached(table, state):
                _count("phase_reached", 1, pipeline=self._pipeline, table=str(table), phase=phase_name(state.phase))
            case _:
                pass

    def _stream(self, report: StreamProgressed) -> None:
        """Catch-up streams are short-lived and run several at once, so they are counted together; lag is sent for the
        apply stream only."""
        applies = report.stream == "apply"
        if applies:
            self._gauge("lag_bytes", report.lag_bytes)
            self._gauge("lag_seconds", report.lag_seconds)
            self._gauge("pause_seconds", report.pause_seconds)
        for name in _COUNTED:
            more = self._more(report.stream, name, getattr(report, name))
            if more:
                _count(name, more, pipeline=self._pipeline, stream="apply" if applies else "catch_up")

    def _gauge(self, name: str, value: float, **tags: str) -> None:
        for each, its_tags in _names(name, {"pipeline": self._pipeline, **tags}):
            stats().gauge(each, value, tags=its_tags)

    def _more(self, stream: str, name: str, count: int) -> int:
        before = self._counted.get((stream, name), 0)
        self._counted[stream, name] = count
        return count - before if count >= before else count


def count_worker(pipeline: str) -> None:
    """Counts the start of a streaming worker. The first metric of a process resolves the name of the metrics server, so
    this must not be called in an event loop."""
    _count("workers_started", 1, pipeline=pipeline)


def gauge_errored(pipeline: str, tables: int) -> None:
    """Sends how many tables are Errored now."""
    for each, its_tags in _names("tables_errored", {"pipeline": pipeline}):
        stats().gauge(each, tables, tags=its_tags)


def _count(name: str, more: int, **tags: str) -> None:
    for each, its_tags in _names(name, tags):
        stats().incr(each, more, tags=its_tags)


def _names(name: str, tags: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the metric's name with its tags, and, where legacy names are on, the name that contains their values."""
    yield f"pgetl.{name}", tags
    if has_legacy_names():
        values = (_UNFIT.sub("_", value.replace(".", "__")) for value in tags.values())
        yield f"pgetl.{'.'.join(values)}.{name}", {}


# -- One line a minute: what is logged in Airflow of the reports of a stream, or of a copy. ----------------------------
#
# A trigger's log lives as long as the trigger, which may be for ever; details are in the store and on the replication
# page. Changes of phase are rare, and each is logged; a table that becomes Errored is logged as an error, with its
# remedy. Warnings are rare as well, but one that is repeated is logged once a minute: a stream that cannot reach a
# server tries every few seconds.

_MINUTE = 60.0


class Log(Protocol):
    def info(self, message: str, /, *arguments: object) -> object: ...

    def warning(self, message: str, /, *arguments: object) -> object: ...

    def error(self, message: str, /, *arguments: object) -> object: ...


class Minutes:
    """An observer that logs."""

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
                if self._is_new(message):
                    self._log.warning("%s", in_airflow(message))
            case StreamProgressed(stream="apply"):
                self._progress(report)
            case CopyProgressed():
                self._copy(report)
            case _:
                pass

    def _is_new(self, message: str) -> bool:
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


# -- Both together: a few lines in the log of the task or trigger, and metrics. ----------------------------------------


class Reporting:
    """An observer, for one task or one child process of a trigger."""

    def __init__(self, pipeline: str, log: Log) -> None:
        self._minutes = Minutes(log)
        self._metrics = Metrics(pipeline)

    def observe(self, report: Report) -> None:
        self._minutes.observe(report)
        self._metrics.observe(report)
