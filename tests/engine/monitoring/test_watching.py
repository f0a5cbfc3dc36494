"""When a pipeline counts as not far behind."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_pgetl.engine.monitoring.snapshots import LagLimit, PipelineSnapshot, SaidLag


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("16MiB", LagLimit(bytes=16 << 20)),
        ("10s", LagLimit(seconds=10.0)),
        (timedelta(minutes=1), LagLimit(seconds=60.0)),
    ],
)
def test_a_limit_is_a_size_or_a_time(text: str | timedelta, limit: LagLimit) -> None:
    assert LagLimit.parse(text) == limit


@pytest.mark.parametrize(
    ("picture", "within"),
    [
        (PipelineSnapshot(streamed=True, lag=SaidLag(100, 1.0, 2.0)), True),
        (PipelineSnapshot(streamed=True, lag=SaidLag(101, 1.0, 2.0)), False),
        (PipelineSnapshot(streamed=True, lag=SaidLag(100, 1.1, 2.0)), False),
        (PipelineSnapshot(streamed=False, lag=SaidLag(0, 0.0, 2.0)), False),
        (PipelineSnapshot(streamed=True, lag=SaidLag(0, 0.0, 31.0)), False),
        (PipelineSnapshot(streamed=True), False),
    ],
)
def test_it_holds_only_while_somebody_streams_and_says_so(picture: PipelineSnapshot, within: bool) -> None:
    assert LagLimit(100, 1.0).holds(picture) is within
