"""Reports to lines of JSON and back."""

import json

import pytest

from airflow_provider_pgetl.engine.model.phases import Errored, FinishedCopy, Ready, RetryPolicy, TableState
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import (
    CopyProgressed,
    Noted,
    PhaseReached,
    Report,
    StreamProgressed,
    from_line,
    to_line,
)
from airflow_provider_pgetl.engine.model.tables import TableName

TABLE = TableName("a.b", 'Weird\n"Ü"')
REPORTS: list[Report] = [
    PhaseReached(TABLE, TableState(FinishedCopy(Boundary(5 << 33)), 2, 7, Boundary(5 << 33))),
    PhaseReached(TABLE, TableState(Errored("why", "how", RetryPolicy("timed", 1.5), "DataSync"), 3)),
    PhaseReached(TABLE, TableState(Ready())),
    CopyProgressed(TABLE, 7, 10, 20, 3),
    StreamProgressed("apply", Boundary(9), Boundary(8), 1, 0.5, 10, 2, missed=1, pause_seconds=0.25),
    Noted("warning", "Something.", TABLE),
    Noted("info", "Something."),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_a_report_comes_back_as_it_was(report: Report) -> None:
    line = to_line(report)

    assert "\n" not in line
    assert from_line(line) == report


@pytest.mark.parametrize("line", ["", "WARN NativeCodeLoader", "{", "[1]", "3", '{"event": "other"}', '{"level": "x"}'])
def test_what_is_not_a_report_is_none(line: str) -> None:
    assert from_line(line) is None


def test_positions_are_spelled_as_postgres_does() -> None:
    assert json.loads(to_line(REPORTS[0]))["state"]["boundary"] == "A/0"
