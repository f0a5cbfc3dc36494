"""The commands against real servers; as processes where signals and terminals matter.

The destination is in memory, so that no Spark is started.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from airflow_provider_pgetl.cli.app import app
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.servers, pytest.mark.parametrize("source_server", [16], indirect=True)]

FILE = """\
id = "shop"
tables = [
    "public.orders",
    "public.items",
]
[source]
uri = "env:SOURCE"
[state]
uri = "env:STATE"
[destination]
type = "memory"
"""


class Shop:
    """A source with two tables, a state database, and the pipeline file between them."""

    def __init__(self, databases: Databases, folder: Path) -> None:
        self.source, self.state = databases
        self.file = folder / "shop.toml"
        self.text = f'{FILE}name = "{self.source.name}"\n'
        self.file.write_text(self.text)
        self.source.execute("create table orders (id int primary key, note text)")
        self.source.execute("insert into orders select n, 'note ' || n from generate_series(1, 1000) n")
        self.source.execute("create table items (id int primary key)")
        self.environment: dict[str, str | None] = {"SOURCE": self.source.uri, "STATE": self.state.uri}

    def change(self, old: str, new: str) -> None:
        assert old in self.text
        self.file.write_text(self.text.replace(old, new))

    def start(self, verb: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "airflow_provider_pgetl", verb, str(self.file), *arguments]
        environment = {**os.environ, **{name: value for name, value in self.environment.items() if value is not None}}
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=ROOT, text=True, env=environment, **{**given, **options})

    def pgetl(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """In this process, which has everything imported already."""
        said = CliRunner().invoke(app, [verb, str(self.file), *arguments], env=self.environment)
        return subprocess.CompletedProcess([verb, *arguments], said.exit_code, said.stdout, said.stderr)

    def status(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(self.pgetl("status", "--json").stdout)
        return found

    def slots(self) -> list[str]:
        statement = "select slot_name::text from pg_replication_slots where database = %s"
        return [name for (name,) in self.source.execute(statement, [self.source.name])]


@pytest.fixture
def shop(databases: Databases, tmp_path: Path) -> Shop:
    return Shop(databases, tmp_path)


def phases(status: Mapping[str, Any]) -> dict[str, str]:
    return {table["table"]: table["phase"] for table in status["tables"]}


# -- check ------------------------------------------------------------------------------------------------------------


def test_check_when_all_is_well(shop: Shop) -> None:
    said = shop.pgetl("check")
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-1] == f"{shop.file}: nothing stands in the way of a run."
    assert " error: " not in said.stdout


def test_check_as_json(shop: Shop) -> None:
    shop.change("public.items", "public.item")
    *findings, end = map(json.loads, shop.pgetl("check", "--log-format", "json").stdout.splitlines())
    (error,) = [each for each in findings if each["severity"] == "error"]
    assert error["place"] == f"{shop.file}:4"
    assert end == {"event": "checked", "errors": 1, "findings": len(findings)}


def test_check_names_slots_that_are_left_over(shop: Shop) -> None:
    """Its own is not."""
    assert shop.pgetl("run", "--until", "caught-up").returncode == 0
    other = "pgetl_orders_abc234_apply"
    shop.source.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [other])
    said = shop.pgetl("check")
    assert said.returncode == 0
    (line,) = [line for line in said.stdout.splitlines() if "pgetl_" in line and "slot" in line]
    assert f": warning: The slot {other} retains " in line
    assert line.endswith(f"SELECT pg_drop_replication_slot('{other}');")
    assert said.stdout.splitlines()[-1] == f"{shop.file}: nothing stands in the way of a run."


@pytest.mark.parametrize("verb", ["check", "run", "status"])
def test_trouble_with_a_source_that_holds_the_state_is_told_as_the_source_s(shop: Shop, verb: str) -> None:
    shop.change('[state]\nuri = "env:STATE"\n', "")
    shop.environment["SOURCE"] = "postgresql://me:hunter2@127.0.0.1:1/shop"
    said = shop.pgetl(verb)
    assert said.returncode == 1
    assert said.stderr == (
        "pgetl: No connection to the source me@127.0.0.1:1/shop: Connection refused. "
        "Check that the server is up and reachable from here.\n"
    )


def test_a_variable_that_is_not_set(shop: Shop) -> None:
    """All that are not set, by every verb that needs them, with the lines that ask for them."""
    shop.environment["SOURCE"] = shop.environment["STATE"] = None
    for verb in ("run", "check"):
        said = shop.pgetl(verb)
        assert said.returncode == 2
        assert said.stderr.splitlines() == [
            f"pgetl: {shop.file}:{line}: The environment variable {name} is not set. "
            f"Set {name} to the connection's URI."
            for line, name in ((7, "SOURCE"), (9, "STATE"))
        ]
    shop.environment["STATE"] = shop.state.uri
    assert shop.pgetl("status").returncode == 0


# -- run and copy -----------------------------------------------------------------------------------------------------


def test_run_until_caught_up_tells_it_in_lines(shop: Shop) -> None:
    said = shop.pgetl("run", "--until", "caught-up")
    assert said.returncode == 0, said.stdout + said.stderr
    lines = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in said.stdout.splitlines()]
    assert "public.orders: DataSync" in lines
    assert any(line.startswith("public.orders: copied 100%") and "1,000 rows" in line for line in lines)
    assert {"public.orders: Ready", "public.items: Ready"} <= set(lines)
    assert lines[-1] == "Done."
    assert phases(shop.status()) == {"public.items": "Ready", "public.orders": "Ready"}


def test_run_as_json_is_json_throughout(shop: Shop) -> None:
    said = shop.pgetl("run", "--until", "caught-up", "--log-format", "json")
    events = [json.loads(line) for line in said.stdout.splitlines()]
    assert {"phase_reached", "copy_progressed", "stream_progressed", "ended"} == {each["event"] for each in events}
    assert events[-1] == {"event": "ended", "stopped": False, "exit_code": 0, "errored": {}}


# -- status, rollback, reset ------------------------------------------------------------------------------------------


def test_status_when_the_source_is_down(shop: Shop) -> None:
    shop.pgetl("copy")
    shop.environment["SOURCE"] = "postgresql://me:hunter2@127.0.0.1:1/shop"
    said = shop.pgetl("status")
    assert said.returncode == 0
    assert re.search(r"^public\.orders .* FinishedCopy at 0/[0-9A-F]+$", said.stdout, re.MULTILINE)
    why = "No connection to the source me@127.0.0.1:1/shop"
    assert f"unknown: Slots and lag, for the source could not be asked: {why}" in said.stdout
    status = shop.status()
    assert status["slots"] is None
    assert status["wal_end"] is None
    assert len(status["tables"]) == 2


def test_status_tells_what_the_slots_retain(shop: Shop) -> None:
    shop.pgetl("run", "--until", "caught-up")
    status = shop.status()
    (slot,) = status["slots"]
    assert slot["name"] == f"pgetl_shop_{status['instance']}_apply" == shop.slots()[0]
    assert (slot["stream"], slot["active"]) == ("apply", False)
    assert slot["retained_bytes"] >= 0
    assert all(table["lag_bytes"] >= 0 and table["since"] > 1.6e9 for table in status["tables"])
    assert status["lineage"]["system"]


def test_status_when_the_state_is_down_is_an_error(shop: Shop) -> None:
    shop.environment["STATE"] = "postgresql://me:hunter2@127.0.0.1:1/state"
    said = shop.pgetl("status")
    assert said.returncode == 1
    assert said.stderr.startswith("pgetl: ")
    assert "hunter2" not in said.stderr


def test_reset_and_rollback(shop: Shop) -> None:
    shop.pgetl("run", "--until", "caught-up")
    said = shop.pgetl("reset", "public.orders")
    again = "A run copies it again, whole; until then its rows in the destination stay as they are."
    assert (said.returncode, said.stdout) == (0, f"public.orders is in Init, generation 2. {again}\n")
    said = shop.pgetl("rollback", '"public".items', "--log-format", "json")
    assert json.loads(said.stdout) == {
        "event": "went_back",
        "table": "public.items",
        "generation": 2,
        "phase": "Init",
        "next": again,
    }
    assert phases(shop.status()) == {"public.items": "Init", "public.orders": "Init"}


def test_an_awkward_name_can_be_pasted_from_status(shop: Shop) -> None:
    shop.source.execute('create table "Weird ""Name" (id int primary key)')
    shop.change('"public.items",', """'public."Weird ""Name"',""")
    shop.pgetl("run", "--until", "caught-up")
    row = next(line for line in shop.pgetl("status").stdout.splitlines() if "Weird" in line)
    name = row.split("  ")[0]
    assert name == 'public."Weird ""Name"'
    assert shop.pgetl("rollback", name).returncode == 0
    said = shop.pgetl("reset", 'public."Weird Name"')
    assert said.stderr.startswith(
        'pgetl: Pipeline shop has no table public."Weird Name"; did you mean public."Weird ""Name"? `pgetl status`'
    )


def test_a_table_that_the_pipeline_has_not(shop: Shop) -> None:
    shop.pgetl("copy")
    said = shop.pgetl("reset", "public.order")
    assert said.returncode == 2
    assert said.stderr.startswith('pgetl: Pipeline shop has no table public.order; did you mean "public.orders"?')


# -- pause and resume -------------------------------------------------------------------------------------------------


def test_a_paused_pipeline_says_so_until_it_is_resumed(shop: Shop) -> None:
    assert "is paused; the source retains its WAL" in shop.pgetl("pause").stdout
    assert "Paused since " in shop.pgetl("status").stdout
    assert "note: The pipeline is paused." in shop.pgetl("check").stdout
    assert shop.pgetl("resume").stdout == "Pipeline shop is resumed.\n"
    assert "Paused" not in shop.pgetl("status").stdout
    assert shop.pgetl("resume").stdout == "Pipeline shop was not paused.\n"


def test_a_copy_of_a_paused_pipeline_says_what_it_waits_for(shop: Shop) -> None:
    shop.pgetl("pause")
    copying = shop.start("copy")
    assert copying.stdout is not None
    said = next(line for line in copying.stdout if "paused" in line)
    assert said.endswith(" warning: The pipeline is paused: no copy begins until `pgetl resume`.\n")
    shop.pgetl("resume")
    text = copying.communicate(timeout=120)[0]
    assert copying.returncode == 0
    assert "is paused" not in text, "it is said once"


# -- release ----------------------------------------------------------------------------------------------------------


def test_a_pipeline_of_a_dag_is_run_here_once_it_is_released(shop: Shop) -> None:
    shop.status()
    shop.state.execute("update pgetl.pipelines set owner = 'sales@airflow.example.com'")
    said = shop.pgetl("run", "--until", "caught-up")
    assert said.returncode == 3
    assert "Pipeline shop belongs to sales@airflow.example.com, which prepares it." in said.stderr
    assert f"`pgetl release {shop.file}`" in said.stderr
    assert shop.slots() == []
    checked = shop.pgetl("check")
    assert (checked.returncode, "error: Pipeline shop belongs to sales@" in checked.stdout) == (3, True)
    assert shop.pgetl("release").stdout == "Pipeline shop belonged to sales@airflow.example.com.\n"
    assert shop.pgetl("release").stdout == "Pipeline shop had no owner.\n"
    assert shop.pgetl("run", "--until", "caught-up").returncode == 0


# -- destroy ----------------------------------------------------------------------------------------------------------


def test_destroy_asks_and_where_nobody_answers_it_refuses(shop: Shop) -> None:
    shop.pgetl("run", "--until", "caught-up")
    said = shop.pgetl("destroy")
    assert said.returncode == 2
    assert "--yes" in said.stderr
    assert on_a_terminal(shop, "destroy", keys=b"n\n")[0] == 2
    assert len(shop.slots()) == 1
    code, text = on_a_terminal(shop, "destroy", keys=b"y\n")
    assert code == 0
    assert "Removed: Slot pgetl_shop_" in text
    assert shop.slots() == []
    assert shop.source.execute("select 1 from pg_publication") == []
    assert shop.status()["tables"] == []


def test_destroy_with_yes(shop: Shop) -> None:
    shop.pgetl("run", "--until", "caught-up")
    said = shop.pgetl("destroy", "--yes", "--log-format", "json")
    assert said.returncode == 0
    assert all(json.loads(line)["event"] == "removed" for line in said.stdout.splitlines())
    assert shop.slots() == []


# -- on a terminal ----------------------------------------------------------------------------------------------------


def test_a_run_on_a_terminal_draws_and_ends_by_control_c(shop: Shop) -> None:
    code, text = on_a_terminal(shop, "run", until="Ready", keys=b"\x03")
    assert code == 0
    assert re.search(r"Ready\s+2\s+public\.items, public\.orders", text)
    assert re.search(r"apply\s+0 changes/s\s+lag", text)
    assert "Stopping" in text
    assert text.rstrip().endswith("Stopped.")


def test_top_draws_again_and_again_until_control_c(shop: Shop) -> None:
    shop.pgetl("run", "--until", "caught-up")
    shop.environment |= {"COLUMNS": "100", "LINES": "30"}
    code, text = on_a_terminal(shop, "top", until="public.orders", keys=b"\x03")
    assert code == 0
    assert "It is not streamed now." in text
    assert re.search(r"public\.items\s.*\sReady", text)
    assert "Stopping" not in text


def test_top_is_printed_once_where_there_is_no_terminal(shop: Shop) -> None:
    shop.pgetl("run", "--until", "caught-up")
    said = shop.pgetl("top")
    assert said.returncode == 0
    assert said.stdout.count("public.orders") == 1
    shop.environment["STATE"] = "postgresql://me:hunter2@127.0.0.1:1/state"
    said = shop.pgetl("top", "--once")
    assert said.returncode == 1
    assert "hunter2" not in said.stderr


def test_status_is_watched_until_control_c(shop: Shop) -> None:
    shop.pgetl("run", "--until", "caught-up")
    watch = shop.start("status", "--watch", "--json", "--log-format", "json")
    assert watch.stdout is not None
    assert [json.loads(watch.stdout.readline())["pipeline"] for _ in range(2)] == ["shop", "shop"]
    watch.send_signal(signal.SIGINT)
    assert watch.wait(timeout=60) == 0


def on_a_terminal(shop: Shop, verb: str, *, keys: bytes, until: str = "") -> tuple[int, str]:
    """The exit code and what stood on a terminal on which `keys` were typed, once `until` was to be read there."""
    master, slave = pty.openpty()
    process = shop.start(
        verb, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=_take_the_terminal
    )
    os.close(slave)
    written, typed = b"", False
    for piece in _pieces(master):
        written += piece
        if not typed and (until.encode() in written if until else b"?" in written):
            os.write(master, keys)
            typed = True
    os.close(master)
    return process.wait(timeout=60), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode()).replace("\r", "")


def _take_the_terminal() -> None:
    """Make it the controlling one, so that Ctrl-C is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _pieces(descriptor: int) -> Iterator[bytes]:
    while select.select([descriptor], [], [], 60)[0]:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # the other side is closed
            return
        if not piece:
            return
        yield piece
    raise AssertionError("nothing was written for a minute")
