"""Plots of the history of a pipeline, as paths of SVG: no script draws them, so that the page needs none. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from airflow_provider_pgetl.engine.model.quantities import format_duration, format_size
from airflow_provider_pgetl.engine.model.results import Measurement, Resolution

WIDTH, HEIGHT = 600.0, 100.0
"""Of the coordinates; the page stretches them."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Chart:
    """`line` and `area` are paths. `most` and `last` are the largest and the latest value, in words; `last` is empty
    without one."""

    title: str
    line: str
    area: str
    most: str
    last: str

    @property
    def is_empty(self) -> bool:
        return not self.line


def _rate(changes: float) -> str:
    return f"{changes:,.0f}/s" if changes >= 10 or changes == 0 else f"{changes:.1f}/s"


_Kind = tuple[str, Callable[[Measurement, Resolution], float], Callable[[float], str]]
_KINDS: tuple[_Kind, ...] = (
    ("Lag", lambda one, _: one.lag_seconds, format_duration),
    ("Changes", lambda one, resolution: one.changes / resolution.seconds, _rate),
    ("WAL retained", lambda one, _: one.retained_bytes, format_size),
    ("Memory of the worker", lambda one, _: one.memory_bytes, format_size),
)


def charts(measured: Sequence[Measurement], resolution: Resolution, now: float) -> list[Chart]:
    """Returns a chart of each kind over the time for which this resolution is kept, up to `now`."""
    return [_of_kind(kind, measured, resolution, now) for kind in _KINDS]


def lag_chart(measured: Sequence[Measurement], resolution: Resolution, now: float) -> Chart:
    return _of_kind(_KINDS[0], measured, resolution, now)


def _of_kind(kind: _Kind, measured: Sequence[Measurement], resolution: Resolution, now: float) -> Chart:
    title, value, words = kind
    return _chart(title, [(one.at, value(one, resolution)) for one in measured], resolution, now, words)


def _chart(
    title: str, points: Sequence[Point], resolution: Resolution, now: float, words: Callable[[float], str]
) -> Chart:
    most = max((value for _, value in points), default=0.0)
    runs = [_scaled(run, most, resolution, now) for run in _runs(points, 2.5 * resolution.seconds)]
    line = "".join(f"M{_path(run)}" for run in runs)
    area = "".join(f"M{run[0][0]:.1f},{HEIGHT:.0f}L{_path(run)}L{run[-1][0]:.1f},{HEIGHT:.0f}Z" for run in runs)
    return Chart(title, line, area, words(most), words(points[-1][1]) if points else "")


def _runs(points: Sequence[Point], gap: float) -> Iterator[list[Point]]:
    """Splits the points where nothing was measured for a while: a plot has a gap there, and not a line across it."""
    run: list[Point] = []
    for at, value in points:
        if run and at - run[-1][0] > gap:
            yield run
            run = []
        run.append((at, value))
    if run:
        yield run


def _scaled(run: Sequence[Point], most: float, resolution: Resolution, now: float) -> list[Point]:
    """Returns the points in coordinates of the plot. A single point becomes a short line."""
    begin = now - resolution.kept
    scaled = [
        (
            min(max((at - begin) / resolution.kept, 0.0), 1.0) * WIDTH,
            HEIGHT - (value / most if most else 0.0) * (HEIGHT - 4) - 1,
        )
        for at, value in run
    ]
    return scaled if len(scaled) > 1 else [(max(scaled[0][0] - 2, 0.0), scaled[0][1]), *scaled]


def _path(points: Sequence[Point]) -> str:
    return "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
