"""The live picture, as a recorded console shows it."""

from __future__ import annotations

import io
import re

from rich.console import Console

from airflow_provider_pgetl.cli.board import Board
from airflow_provider_pgetl.cli.terminal import TerminalWatcher, draw
from airflow_provider_pgetl.engine.model.phases import DataSync, Errored, FinishedCopy, Init, Ready
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import Noted, Report
from airflow_provider_pgetl.engine.model.tables import TableName
from tests.cli.reported import HOSTILE, ITEMS, MIB, copied, reached, streamed


def drawn(*reports: tuple[float, Report], width: int = 120) -> list[str]:
    board = Board()
    for at, report in reports:
        board.tell(report, at)
    console = Console(file=io.StringIO(), record=True, width=width)
    console.print(draw(board.picture()))
    return [re.sub(" {2,}", "  ", line).rstrip() for line in console.export_text().splitlines()]


def test_before_anything_was_reported() -> None:
    assert drawn() == ["Preparing…"]


def test_a_bar_for_each_copy_a_line_for_each_stream_a_row_for_each_phase() -> None:
    lines = drawn(
        (0, reached(DataSync())),
        (0, copied(0)),
        (10, copied(50 * MIB)),
        (0, reached(Ready(), ITEMS)),
        (0, streamed(0)),
        (10, streamed(123_450, lag=12)),
    )
    bar, stream, syncing, ready = lines
    assert re.fullmatch(r"public\.orders  [━╸╺ ]+  50%  524,288 rows  5\.0 MiB/s  10 s left", bar)
    assert stream == "apply  12,345 changes/s  lag 12 s (4.0 KiB)"
    assert syncing == "DataSync  1  public.orders"
    assert ready == "Ready  1  public.items"


def test_a_catch_up_is_called_so() -> None:
    lines = drawn((0, reached(FinishedCopy(Boundary(1)), attempt=3)), (0, streamed(0, "c3")), (0, streamed(0)))
    assert [line.partition("  ")[0] for line in lines] == ["apply", "catch-up c3", "FinishedCopy"]


def test_errors_are_told_in_full() -> None:
    lines = drawn((0, reached(Errored("value 7 is too large.", "Widen the column."))))
    assert lines == ["Errored  1  public.orders", "public.orders: Errored: value 7 is too large. Widen the column."]


def test_hundreds_of_tables_stay_a_few_lines() -> None:
    reports = [(0.0, reached(Init(), TableName("public", f"t{number:03}"))) for number in range(300)]
    copies = [(0.0, copied(1, table=TableName("public", f"t{number:03}"))) for number in range(20)]
    lines = drawn(*reports, *copies)
    assert lines[-1] == (
        "Init  300  public.t000, public.t001, public.t002, public.t003, public.t004, public.t005 and 294 more"
    )
    assert lines[-2] == "and 12 more tables"
    assert len(lines) == 10


def test_a_name_is_neither_markup_nor_a_command() -> None:
    assert drawn((0, reached(Ready(), HOSTILE))) == ['Ready  1  public."[red]\\n\\x1b[2J"']


def test_a_narrow_terminal_cuts_names_and_no_lines_wrap() -> None:
    assert len(drawn((0, reached(Ready(), TableName("public", "x" * 200))), width=40)) == 1


def test_notes_scroll_by_and_the_last_picture_stands() -> None:
    out = io.StringIO()
    watcher = TerminalWatcher(Console(file=out, width=80, force_terminal=True, legacy_windows=False))
    watcher(Noted("warning", "Look [out].\nTwice."))
    watcher(reached(Ready()))
    watcher.say("Stopping.")
    watcher.close()
    watcher.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "warning: Look [out].\n    Twice." in text
    assert text.index("Stopping.") < text.rindex("Ready  1  public.orders")


def test_a_long_error_is_not_cut() -> None:
    errored = Errored("the value is " + "very " * 40 + "large.", "Widen the column.")
    assert "Widen the column." in " ".join(drawn((0, reached(errored)), width=60))
