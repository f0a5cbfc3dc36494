"""Reports as lines: the phases all, progress now and then, every line whole, whatever a table is called."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable

from airflow_provider_pgetl.cli.lines import JsonLines, PlainLines
from airflow_provider_pgetl.engine.model.phases import DataSync, Errored, FinishedCopy, Ready
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import Noted, Report, from_line
from tests.cli.reported import HOSTILE, ITEMS, MIB, ORDERS, copied, reached, streamed


def plain(reports: Iterable[tuple[float, Report]], interval: float = 5.0) -> list[str]:
    out, now = io.StringIO(), [0.0]
    lines = PlainLines(out, interval, clock=lambda: now[0], time_of_day=lambda: "12:00:00")
    for at, report in reports:
        now[0] = at
        lines(report)
    assert out.getvalue().endswith("\n") or not out.getvalue()
    return out.getvalue().removesuffix("\n").split("\n")


def test_phases_in_words() -> None:
    errored = Errored("value 7 is too large.", "Widen the column.")
    assert plain([(0, reached(DataSync())), (0, reached(FinishedCopy(Boundary(0x1A2B)))), (0, reached(errored))]) == [
        "12:00:00 public.orders: DataSync",
        "12:00:00 public.orders: FinishedCopy at 0/1A2B",
        "12:00:00 public.orders: Errored: value 7 is too large. Widen the column.",
    ]


def test_a_phase_that_several_report_is_written_once() -> None:
    assert len(plain([(0, reached(Ready())), (1, reached(Ready())), (2, reached(Ready()))])) == 1


def test_progress_is_written_now_and_then_and_at_the_end() -> None:
    reports = [(second / 10, copied(second * MIB)) for second in range(101)]
    lines = plain(reports)
    assert len(lines) == 3
    assert lines[0].startswith("12:00:00 public.orders: copied 0%, 0 B of 100.0 MiB, 0 rows")
    assert lines[1].startswith("12:00:00 public.orders: copied 50%, 50.0 MiB of 100.0 MiB, 524,288 rows, 10.0 MiB/s")
    assert lines[2].startswith("12:00:00 public.orders: copied 100%")


def test_one_busy_table_does_not_hide_another() -> None:
    assert len(plain([(0, copied(1)), (0, copied(1, table=ITEMS)), (0, streamed(1)), (0, streamed(1, "c1"))])) == 4


def test_streams_in_words() -> None:
    assert plain([(0, streamed(0)), (10, streamed(25_000, missed=3))])[1] == (
        "12:00:00 apply: 2,500 changes/s, 25,000 so far, lag 0.3 s (4.0 KiB), 3 found no row"
    )


def test_notes_in_words_and_the_lines_of_a_quoted_log_indented() -> None:
    notes = [Noted("info", "Hello."), Noted("warning", "Careful."), Noted("error", "It said:\nline\x1b[0m\n")]
    assert plain([(0, note) for note in notes]) == [
        "12:00:00 Hello.",
        "12:00:00 warning: Careful.",
        "12:00:00 error: It said:",
        "    line\\x1b[0m",
    ]


def test_a_table_cannot_write_lines_of_its_own() -> None:
    assert plain([(0, reached(Ready(), HOSTILE))]) == ['12:00:00 public."[red]\\n\\x1b[2J": Ready']


def test_json_lines_are_the_engines_with_the_time() -> None:
    out = io.StringIO()
    lines = JsonLines(out, clock=lambda: 0.0, wall_clock=lambda: 1700000000.5)
    reports: list[Report] = [reached(Ready(), HOSTILE), copied(5), streamed(7), Noted("warning", "Careful.", ORDERS)]
    for report in reports:
        lines(report)
    written = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [each.pop("at") for each in written] == [1700000000.5] * 4
    assert [from_line(json.dumps(each)) for each in written] == reports


def test_a_reader_that_is_gone_does_not_stop_the_run() -> None:
    class Gone(io.StringIO):
        attempts = 0

        def write(self, text: str) -> int:
            self.attempts += 1
            raise BrokenPipeError

    out = Gone()
    lines = PlainLines(out)
    lines(Noted("info", "Anybody?"))
    lines(Noted("info", "Nobody."))
    assert out.attempts == 1
