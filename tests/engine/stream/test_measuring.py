"""What a stream measures between two records."""

from __future__ import annotations

from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import StreamProgressed
from airflow_provider_pgetl.engine.model.results import Measurement
from airflow_provider_pgetl.engine.stream.progress import Measuring


def report(changes: int, batches: int, lag: int = 0) -> StreamProgressed:
    return StreamProgressed("apply", Boundary(1), Boundary(1), lag, lag / 100, changes, batches)


def test_reports_are_joined_until_the_time_has_come() -> None:
    measuring = Measuring(10.0)
    assert measuring.take(report(100, 1, 50), 5, 9, 0.0) is None
    assert measuring.take(report(250, 2, 300), 7, 8, 5.0) is None
    assert measuring.take(report(400, 3, 0), 6, 7, 10.0) == Measurement(300, 3.0, 400, 3, 7, 9)
    assert measuring.take(report(450, 4, 10), 0, 0, 15.0) is None
    assert measuring.take(report(450, 4, 0), 0, 0, 20.0) == Measurement(10, 0.1, 50, 1)


def test_a_stream_that_succeeds_another_counts_from_none() -> None:
    measuring = Measuring(10.0)
    measuring.take(report(400, 3), 0, 0, 0.0)
    assert measuring.take(report(30, 1), 0, 0, 10.0) == Measurement(changes=430, batches=4)
