"""Where the engine's reports go in Airflow: a few lines to the log of the task or trigger, figures to the metrics."""

from __future__ import annotations

from airflow_provider_pgetl.engine.reports import Report
from airflow_provider_pgetl.metrics import Metrics
from airflow_provider_pgetl.triggers.minutes import Log, Minutes


class Reporting:
    """An observer, for one task or one child of a trigger."""

    def __init__(self, pipeline: str, log: Log) -> None:
        self._minutes = Minutes(log)
        self._metrics = Metrics(pipeline)

    def observe(self, report: Report) -> None:
        self._minutes.observe(report)
        self._metrics.observe(report)
