"""How a run's end is told: the tables that are Errored, the exit code, the notes of libraries."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_pgetl.cli.error_messages import ErrorMessages
from airflow_provider_pgetl.cli.lines import JsonLines, PlainLines, status_lines
from airflow_provider_pgetl.cli.session import (
    CommandSession,
    LogFormat,
    Manner,
    progress_watcher,
    session,
    stop_on_signals,
)
from airflow_provider_pgetl.engine.config.pipeline_file import read_pipeline_file
from airflow_provider_pgetl.engine.model.phases import Errored, TableState
from airflow_provider_pgetl.engine.model.results import RunOutcome, SlotStatus, Status, TableStatus
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.pipeline import Pipeline

LOST = SlotStatus("pgetl_shop_abc_apply", "apply", False, None, None, "lost", "wal_removed")
WEIRD = TableName("public", 'Weird "Name')
TEXT = 'id="shop"\ntables=["public.a"]\n[source]\nuri="env:SOURCE"\n[destination]\ntype="memory"'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shop.toml"
    path.write_text(TEXT)
    return path


def ended(path: Path, outcome: RunOutcome, manner: Manner, *, stopped: bool = False) -> tuple[int, str]:
    """The exit code and what was written to standard error."""
    err = io.StringIO()
    file = read_pipeline_file(path)
    watcher = PlainLines(io.StringIO())
    asked = CommandSession(file, manner, ErrorMessages(manner.as_json, stream=err), watcher, Pipeline(file.spec))
    return asked.close_with(outcome, stopped=stopped), err.getvalue()


def test_all_well(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(path, RunOutcome(), Manner()) == (0, "")
    assert capsys.readouterr().out == "Done.\n"


def test_a_table_that_is_errored_is_told_with_its_remedy_and_exits_with_4(path: Path) -> None:
    outcome = RunOutcome({TableName("public", "a"): Errored("value 7 is too large.", "Widen the column.")})
    code, text = ended(path, outcome, Manner())
    assert code == 4
    remedy = f"Widen the column. Then `pgetl rollback {path} public.a`."
    assert text == f"pgetl: public.a is Errored: value 7 is too large. {remedy}\n"


def test_without_a_remedy_the_command_to_go_on_is_offered(path: Path) -> None:
    _, text = ended(path, RunOutcome({WEIRD: Errored("It broke.")}), Manner())
    assert text == (
        'pgetl: public."Weird ""Name" is Errored: It broke. '
        f"""Settle it, then roll the table back (`pgetl rollback {path} 'public."Weird ""Name"'`).\n"""
    )


@pytest.mark.parametrize(
    ("place", "told", "warning"),
    [
        (
            Path("shop.toml"),
            "Copy the table again: `pgetl reset shop.toml public.a`.",
            "Reset the tables with `pgetl reset`",
        ),
        (
            Path("airflow:shop"),
            "Copy the table again: clear its `data_sync`.",
            "Reset the tables by a Clear of `data_sync` of each",
        ),
    ],
)
def test_a_status_has_remedies_as_they_are_told_there(path: Path, place: Path, told: str, warning: str) -> None:
    file = replace(read_pipeline_file(path), path=place)
    asked = CommandSession(file, Manner(), ErrorMessages(file=file), PlainLines(io.StringIO()), Pipeline(file.spec))
    phase = Errored("It is damaged.", "Copy the table again: `pgetl reset FILE TABLE`.", from_phase="Ready")
    tables = (TableStatus(TableName("public", "a"), TableState(phase)),)
    found = asked.with_remedies(Status("shop", "abc", 1, tables, (LOST,)))
    assert found.as_json()["tables"][0]["solution"] == told
    text = "\n".join(map(asked.error_messages.with_file, status_lines(found)))
    assert f"Errored: It is damaged. {told}" in text
    assert warning in text
    assert "FILE" not in text


def test_who_was_stopped_exits_with_0(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(path, RunOutcome({WEIRD: Errored("It broke.")}), Manner(), stopped=True)[0] == 0
    assert capsys.readouterr().out == "Stopped.\n"


def test_the_end_as_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ended(path, RunOutcome({WEIRD: Errored("It broke.")}), Manner(LogFormat.JSON))
    assert json.loads(text)["exit_code"] == code == 4
    end = json.loads(capsys.readouterr().out)
    assert (end["event"], end["exit_code"], end["stopped"]) == ("ended", 4, False)
    assert end["errored"]['public."Weird ""Name"']["reason"] == "It broke."


def test_what_is_logged_meanwhile_is_noted_without_secrets(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with session(path, Manner()):
        logging.getLogger("library").warning("retrying %s", "postgresql://me:hunter2@db/shop")
        logging.getLogger("library").info("not worth a line")
    logging.getLogger("library").warning("too late")
    err = capsys.readouterr().err
    assert "warning: retrying postgresql://***@db/shop" in err
    assert "not worth" not in err
    assert "too late" not in err


def test_verbose_sessions_note_more(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with session(path, Manner(verbose=True)):
        logging.getLogger("library").info("worth a line")
    assert "worth a line" in capsys.readouterr().err


def test_progress_is_lines_in_a_pipe_and_json_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert isinstance(progress_watcher(Manner()), PlainLines)
    assert isinstance(progress_watcher(Manner(LogFormat.JSON)), JsonLines)


# -- Signals: the first asks, the second insists, and nobody waits for ever. -------------------------------------------


def _silent(text: str) -> None:
    """Says nothing."""


def test_the_first_signal_sets_the_event_and_says_so() -> None:
    said: list[str] = []
    with stop_on_signals(said.append) as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(60)
    assert said == ["Stopping: the write in flight is given a moment."]


def test_control_c_asks_as_well() -> None:
    with stop_on_signals(_silent) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(60)


def test_a_signal_of_others_neither_asks_nor_ends_the_watch() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with stop_on_signals(_silent) as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not stop.wait(0.2)
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.wait(60)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_without_a_signal_nothing_happens() -> None:
    said: list[str] = []
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    threads = threading.active_count()
    with stop_on_signals(said.append) as stop:
        pass
    assert not stop.is_set()
    assert said == []
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert threading.active_count() == threads


@pytest.mark.parametrize(("second", "code"), [(True, 1), (False, 0)])
def test_a_second_signal_or_the_end_of_patience_ends_the_process(second: bool, code: int) -> None:
    left: list[int] = []
    gone = threading.Event()

    def leave(with_code: int) -> None:
        left.append(with_code)
        gone.set()

    with stop_on_signals(_silent, leave, patience=60 if second else 0.05) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(60)
        assert second or gone.wait(60)
        if second:
            os.kill(os.getpid(), signal.SIGTERM)
        assert gone.wait(60)
    assert left == [code]


def test_a_verb_that_stops_in_time_is_not_left() -> None:
    left: list[int] = []
    with stop_on_signals(_silent, left.append, patience=60) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        stop.wait(5)
    time.sleep(0.05)
    assert left == []
