"""The picture that `pgetl top` draws: what is wrong first, and the last hour of the stream."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich.console import Console

from airflow_provider_pgetl.cli.top import sparkline, top_frame
from airflow_provider_pgetl.engine.model.phases import DataSync, Errored, Phase, Ready, TableState
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.results import RESOLUTIONS, Lease, Measurement, Status, TableStatus
from airflow_provider_pgetl.engine.model.tables import TableName
from tests.cli.reported import HOSTILE, MIB

NOW = 100_000.0
LEASE = Lease("worker", 3, 0.0)


def table(name: str | TableName, phase: Phase, lag: int | None = None) -> TableStatus:
    place = name if isinstance(name, TableName) else TableName("public", name)
    return TableStatus(place, TableState(phase), position=Boundary(0x1A2B), lag_bytes=lag)


def drawn(tables: Sequence[TableStatus], measured: Sequence[Measurement] = ()) -> list[str]:
    status = Status("shop", "1a2b", 3, tuple(tables), lease=LEASE, streamed_by="host 1")
    console = Console(file=io.StringIO(), record=True, width=120)
    console.print(top_frame(status, measured, RESOLUTIONS[0], NOW))
    return [re.sub(" {2,}", "  ", line).rstrip() for line in console.export_text().splitlines()]


def test_what_is_wrong_comes_first_then_what_is_on_its_way_then_who_is_furthest_behind() -> None:
    lines = drawn(
        [
            table("near", Ready(), 10),
            table("far", Ready(), 3 * MIB),
            table("new", DataSync()),
            table("broken", Errored("value 7 is too large.", "Widen the column.")),
        ]
    )
    assert lines[0] == "Pipeline shop, instance 1a2b: Streamed by host 1, epoch 3"
    assert lines[2:] == [
        "TABLE  LAG  POSITION  PHASE",
        "public.broken  –  0/1A2B  Errored: value 7 is too large. Widen the column.",
        "public.new  –  0/1A2B  DataSync",
        "public.far  3.0 MiB  0/1A2B  Ready",
        "public.near  10 B  0/1A2B  Ready",
    ]


def test_the_last_hour_is_a_character_for_each_minute() -> None:
    measured = [
        Measurement(lag_seconds=8.0, changes=600, retained_bytes=MIB, memory_bytes=MIB, at=NOW - 125),
        Measurement(lag_seconds=1.0, changes=100, retained_bytes=MIB, memory_bytes=MIB, at=NOW - 35),
        Measurement(lag_seconds=4.0, changes=300, retained_bytes=MIB, memory_bytes=MIB, at=NOW - 5),
    ]
    lag, changes, retained, memory = drawn([], measured)[2:6]
    assert lag == "lag  █ ▅  4.0 s now  8.0 s at most"
    assert changes == "changes  █ ▃  30/s now  60/s at most"
    assert retained == "WAL retained  █ █  1.0 MiB now  1.0 MiB at most"
    assert memory == "memory  █ █  1.0 MiB now  1.0 MiB at most"


def test_a_minute_without_a_worker_is_blank_and_one_without_changes_is_low() -> None:
    assert sparkline([None, 0.0, 4.0, 8.0, None]) == " ▁▅█ "
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([None]) == " "


def test_without_a_history_or_tables() -> None:
    assert drawn([])[2:] == ["No tables yet."]


def test_a_table_cannot_draw() -> None:
    assert drawn([table(HOSTILE, Ready())])[3].startswith('public."[red]\\n\\x1b[2J"')
