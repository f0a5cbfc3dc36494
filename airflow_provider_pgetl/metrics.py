"""What reports say, as Airflow's metrics: statsd or OpenTelemetry, whatever Airflow is configured for.

    pgetl.workers_started                       counter     pipeline
    pgetl.lag_bytes, pgetl.lag_seconds          gauges      pipeline, stream
    pgetl.changes, pgetl.batches, pgetl.missed  counters    pipeline, stream
    pgetl.pause_seconds                         gauge       pipeline, stream
    pgetl.copied_rows, pgetl.copied_bytes       gauges      pipeline, table
    pgetl.phase_reached                         counter     pipeline, table, phase

A metric of a table is known by its name as declared.
"""

from __future__ import annotations

from functools import cache

from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils

from airflow_provider_pgetl.engine.phases import phase_name
from airflow_provider_pgetl.engine.reports import CopyProgressed, PhaseReached, Report, StreamProgressed

_COUNTED = ("changes", "batches", "missed")


class Metrics:
    """An observer. Counters of a stream begin anew with each process that reports; here they become increments."""

    def __init__(self, pipeline: str) -> None:
        _configure()
        self._pipeline = pipeline
        self._counted: dict[tuple[str, str], int] = {}

    def observe(self, report: Report) -> None:
        match report:
            case StreamProgressed():
                self._stream(report)
            case CopyProgressed(table, _, bytes_done, _, rows):
                tags = {"pipeline": self._pipeline, "table": str(table)}
                stats.gauge("pgetl.copied_rows", rows, tags=tags)
                stats.gauge("pgetl.copied_bytes", bytes_done, tags=tags)
            case PhaseReached(table, state):
                tags = {"pipeline": self._pipeline, "table": str(table), "phase": phase_name(state.phase)}
                stats.incr("pgetl.phase_reached", tags=tags)
            case _:
                pass

    def _stream(self, report: StreamProgressed) -> None:
        tags = {"pipeline": self._pipeline, "stream": report.stream}
        stats.gauge("pgetl.lag_bytes", report.lag_bytes, tags=tags)
        stats.gauge("pgetl.lag_seconds", report.lag_seconds, tags=tags)
        stats.gauge("pgetl.pause_seconds", report.pause_seconds, tags=tags)
        for name in _COUNTED:
            more = self._more(report.stream, name, getattr(report, name))
            if more:
                stats.incr(f"pgetl.{name}", more, tags=tags)

    def _more(self, stream: str, name: str, count: int) -> int:
        before = self._counted.get((stream, name), 0)
        self._counted[stream, name] = count
        return count - before if count >= before else count


def count_worker(pipeline: str) -> None:
    """A streaming worker is started. The first metric of a process looks up the server's name, so not in a loop."""
    _configure()
    stats.incr("pgetl.workers_started", tags={"pipeline": pipeline})


@cache
def _configure() -> None:
    """Airflow does this in the processes of tasks, and in a triggerer for itself but not for triggers."""
    legacy = conf.getboolean("metrics", "legacy_names_on")
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=legacy)
