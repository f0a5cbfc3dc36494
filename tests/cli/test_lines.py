"""Reports as lines: the phases all, progress now and then, every line whole, whatever a table is called."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import replace

from airflow_provider_pgetl.cli.lines import JsonLines, PlainLines, columns, status_lines, verified_lines
from airflow_provider_pgetl.engine.model.phases import DataSync, Errored, FinishedCopy, Ready, TableState
from airflow_provider_pgetl.engine.model.positions import Boundary, Lineage
from airflow_provider_pgetl.engine.model.reports import Noted, Report, from_line
from airflow_provider_pgetl.engine.model.results import Lease, RunOutcome, SlotStatus, Status, TableStatus
from airflow_provider_pgetl.engine.model.tables import TableName, parse_table
from airflow_provider_pgetl.engine.model.verification import Difference, TableVerified, Verified
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


# -- Status, as people read it and as scripts do. ----------------------------------------------------------------------

READY = TableStatus(ORDERS, TableState(Ready(), 2, 5), TableName("archive", "orders"), 0.0, Boundary(0x10), 2048)
BROKEN = TableStatus(HOSTILE, TableState(Errored("Too large.", "Widen.", from_phase="Ready"), 1, 4))
SLOT = SlotStatus("pgetl_shop_abc_apply", "apply", True, Boundary(0x20), 3 << 20, "reserved")
LOST = SlotStatus("pgetl_shop_abc_c5", "c5", False, None, None, "lost", "wal_removed")
UP = Status(
    "shop",
    "abc",
    3,
    (READY, BROKEN),
    (SLOT, LOST),
    Boundary(0x30),
    Lease("host/b00t/4026/77/1", 3, 99.0),
    Lineage("712", 1, (), 5, 16400),
    streamed_by="process 77 on host",
)
DOWN = Status("shop", "abc", 3, (), unknown=("Slots and lag, for the source could not be asked: No connection.",))


def test_a_row_for_each_table_and_slot() -> None:
    text = list(status_lines(UP))
    assert text[:2] == ["Pipeline shop, instance abc, epoch 3", "Streamed by process 77 on host, epoch 3"]
    assert text[4].split()[:3] == ["public.orders", "archive.orders", "2"]
    assert text[4].split()[-4:] == ["0/10", "2.0", "KiB", "Ready"]
    assert text[5].startswith('public."[red]\\n\\x1b[2J"  –')
    assert text[5].endswith("Errored: Too large. Widen.")
    assert text[8].split() == ["pgetl_shop_abc_apply", "yes", "0/20", "3.0", "MiB", "reserved"]
    assert text[9].split() == ["pgetl_shop_abc_c5", "no", "–", "–", "lost", "(wal_removed)"]


def test_a_name_reads_back_as_the_table_that_it_names() -> None:
    for table in (TableName("public", 'Weird "Name'), TableName("a.b", "*"), TableName("s p", "select")):
        status = Status("shop", "abc", 0, (TableStatus(table, TableState(Ready(), 1, 1), table),))
        row = list(status_lines(status))[-1]
        first, second = row.split("  ")[:2]
        assert parse_table(first) == parse_table(second) == table


def test_a_lost_slot_is_warned_of() -> None:
    """The apply slot's tables wait for a person, a group's are copied again."""
    apply = SlotStatus("pgetl_shop_abc_apply", "apply", False, None, None, "lost", "wal_removed")
    text = list(status_lines(Status("shop", "abc", 1, (READY,), (apply, LOST))))
    first, second = (line for line in text if line.startswith("warning: "))
    assert first.startswith("warning: The slot pgetl_shop_abc_apply is lost (wal_removed): changes are missing.")
    assert "`pgetl reset`" in first
    assert second.endswith("pgetl_shop_abc_c5 is lost (wal_removed): changes are missing. "
                           "The next run copies its tables again by itself.")  # fmt: skip


def test_a_slot_that_is_gone_is_warned_of_where_tables_are_followed() -> None:
    gone = Status("shop", "abc", 1, (READY,), ())
    assert "does not exist any more" in gone.as_json()["warnings"][0]
    assert Status("shop", "abc", 1, (BROKEN,), ()).warnings == ()
    assert Status("shop", "abc", 1, (READY,), None).warnings == ()
    assert Status("shop", "abc", 1, (READY,), (SLOT,)).warnings == ()


def test_what_could_not_be_asked_is_said() -> None:
    text = "\n".join(status_lines(DOWN))
    assert "No tables yet" in text
    assert "It is not streamed now." in text
    assert "SLOT" not in text
    assert "replication slot" not in text
    assert "unknown: Slots and lag, for the source could not be asked: No connection." in text


def test_a_source_without_slots_is_no_unknown() -> None:
    assert "No replication slot." in list(status_lines(Status("shop", "abc", 0, (READY,), ())))


def test_columns_align() -> None:
    assert list(columns([("A", "LONG", "C"), ("long", "b", "")])) == ["A     LONG  C", "long  b"]


def test_status_says_what_is_transformed() -> None:
    ruled = replace(READY, transformed={"email": "email", "name": "mask", "note": "keep"})
    text = list(status_lines(Status("shop", "abc", 0, (ruled,), ())))
    assert f"{READY.table} is transformed: email by email, name by mask" in text


def test_status_as_json() -> None:
    data = json.loads(json.dumps(UP.as_json()))
    assert data["tables"][0] == {
        "table": "public.orders",
        "destination": "archive.orders",
        "phase": "Ready",
        "generation": 2,
        "attempt": 5,
        "since": 0.0,
        "position": "0/10",
        "lag_bytes": 2048,
        "merged": None,
        "merge_lag_bytes": None,
        "verified": None,
        "transformed": {},
    }
    assert data["tables"][1]["reason"] == "Too large."
    assert data["tables"][1]["table"] == 'public."[red]\n\x1b[2J"'
    assert data["slots"][1]["lost"] == "wal_removed"
    assert data["lease"] == {"holder": "host/b00t/4026/77/1", "epoch": 3, "expires": 99.0}
    assert data["lineage"]["system"] == "712"
    assert DOWN.as_json()["slots"] is None
    assert len(DOWN.as_json()["unknown"]) == 1


def test_the_merge_lag_is_shown_where_changes_land() -> None:
    landed = replace(READY, position=Boundary(0x1810), merged=Boundary(0x10))
    status = replace(UP, tables=(landed, BROKEN))
    head, orders = list(status_lines(status))[3:5]
    assert head.split()[-3:] == ["MERGE", "LAG", "PHASE"]
    assert orders.split()[-3:] == ["6.0", "KiB", "Ready"]
    assert (landed.as_json()["merged"], landed.as_json()["merge_lag_bytes"]) == ("0/10", 6144)
    assert BROKEN.as_json()["merge_lag_bytes"] is None
    assert "MERGE LAG" not in "".join(status_lines(UP))


def test_outcome_as_json() -> None:
    assert RunOutcome().as_json() == {"errored": {}}
    assert UP.errored == {HOSTILE: BROKEN.state.phase}
    assert RunOutcome(UP.errored).as_json()["errored"]['public."[red]\n\x1b[2J"']["from_phase"] == "Ready"


DIFFERENT = TableVerified(
    TableName("public", "orders"),
    "different",
    Boundary(0x10),
    0.0,
    rows=500,
    missing=1,
    changed=1,
    differences=(Difference("changed", {"id": "8"}, {"note": ("a", "NULL")}, {"id": "8"}, {"id": "8"}),),
    generation=2,
)


def test_a_table_that_was_found_to_differ_is_warned_of() -> None:
    status = replace(UP, tables=(replace(READY, verified=DIFFERENT), BROKEN))
    head, orders, broken = list(status_lines(status))[3:6]
    assert head.split()[-2:] == ["VERIFIED", "PHASE"]
    assert orders.endswith("DIFFERENT up to 0/10  Ready")
    assert "  –  " in broken
    (said,) = (one for one in status.warnings if "DIFFERENT" in one)
    assert "`pgetl verify FILE public.orders --last`" in said
    assert status.as_json()["tables"][0]["verified"]["missing"] == 1
    assert "differences" not in status.as_json()["tables"][0]["verified"]


def test_what_was_found_of_an_earlier_copy_does_not_count() -> None:
    status = replace(UP, tables=(replace(READY, verified=replace(DIFFERENT, generation=1)),))
    assert list(status_lines(status))[4].endswith("  –         Ready")
    assert not [one for one in status.warnings if "DIFFERENT" in one]


def test_a_table_that_was_found_equal_is_no_warning() -> None:
    status = replace(UP, tables=(replace(READY, verified=replace(DIFFERENT, verdict="equal")),))
    assert list(status_lines(status))[4].endswith("equal up to 0/10  Ready")
    assert not [one for one in status.warnings if "0/10" in one]


def test_past_verifications() -> None:
    equal = replace(DIFFERENT, verdict="equal", missing=0, changed=0, differences=(), position=Boundary(0x20))
    text = list(verified_lines(Verified([equal], before=[DIFFERENT])))
    assert text == [
        "public.orders: equal up to 0/20, at 1970-01-01 00:00:00 UTC, 500 rows.",
        "",
        "Rows differed before:",
        "public.orders: DIFFERENT (1 missing, 1 changed) up to 0/10, at 1970-01-01 00:00:00 UTC, 500 rows.",
        "    changed: id 8: note is a at the source and NULL here",
        "    and 1 more",
    ]
