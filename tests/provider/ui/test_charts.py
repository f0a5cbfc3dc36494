"""Plots of the history."""

from __future__ import annotations

import re

from airflow_provider_pgetl.engine.model.results import RESOLUTIONS, Measurement, Resolution
from airflow_provider_pgetl.ui.charts import HEIGHT, WIDTH, charts, lag_chart

HOUR = RESOLUTIONS[0]
NOW = 10_000.0


def measured(*ats: float) -> list[Measurement]:
    return [Measurement(lag_seconds=1.0 + number, changes=5, at=at) for number, at in enumerate(ats)]


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+),([\d.]+)", path)]


def test_without_measurements_nothing_is_plotted() -> None:
    assert all(chart.is_empty and chart.last == "" for chart in charts([], HOUR, NOW))


def test_a_plot_goes_from_the_begin_of_the_span_to_now() -> None:
    line = points(lag_chart(measured(NOW - 3600, NOW - 3590, NOW - 3580), HOUR, NOW).line)
    assert line[0][0] == 0.0
    (*_, last) = points(lag_chart(measured(NOW - 10, NOW), HOUR, NOW).line)
    assert last[0] == WIDTH


def test_the_largest_value_is_at_the_top_and_nothing_leaves_the_plot() -> None:
    line = points(lag_chart(measured(*(NOW - 10 * n for n in range(50, 0, -1))), HOUR, NOW).line)
    assert min(y for _, y in line) == line[-1][1] == 3.0
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in line)


def test_where_nothing_was_measured_the_line_has_a_gap() -> None:
    assert lag_chart(measured(NOW - 100, NOW - 90, NOW - 50, NOW - 40), HOUR, NOW).line.count("M") == 2
    assert lag_chart(measured(NOW - 100, NOW - 90, NOW - 70), HOUR, NOW).line.count("M") == 1


def test_changes_are_a_rate_and_values_have_units() -> None:
    found = [Measurement(50, 0.25, 1200, 3, 5 << 20, 300 << 20, NOW)]
    words = {chart.title: chart.last for chart in charts(found, Resolution(120, 86400), NOW)}
    assert words == {
        "Lag": "0.2 s",
        "Changes": "10/s",
        "WAL retained": "5.0 MiB",
        "Memory of the worker": "300.0 MiB",
    }
