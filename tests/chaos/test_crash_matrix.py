"""Every row of the protocol's crash matrix: the process dies exactly there, and the next run puts it right.

A small shop that changes while it is replicated. A failpoint is armed, the run dies of it (which is asserted: a place
that is never passed proves nothing), another run goes to its end, and then source and destination are equal, every
table is Ready, and no slot and no staging is left but what is needed.

The places of a phase are died at one after the other, in one shop; each alone, in a shop of its own, among the slow
tests.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.equality import assert_equal
from tests.chaos.running import KILLED, Runs
from tests.chaos.shop import ShopTable
from tests.postgres_servers import Database, Databases

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("source_server", [16], indirect=True)]

ORDERS = ShopTable("public.orders", "create table public.orders (id int primary key, what text)")
NOTES = ShopTable("public.notes", "create table public.notes (line text, n int)")
QUIET = tuple(
    ShopTable(f"public.quiet_{n}", f"create table public.quiet_{n} (id int primary key, what text)") for n in range(4)
)
TABLES = (ORDERS, NOTES, *QUIET)

_FILE = """
id = "matrix"
tables = ["public.*"]
[source]
uri = "env:PGETL_SOURCE_URI"
[state]
uri = "env:PGETL_STATE_URI"
[destination]
type = "postgres"
uri = "env:PGETL_DESTINATION_URI"
[copy]
range_bytes = "16KiB"
group_bytes = "{group}"
table_workers = {workers}
"""
_ONE_GROUP = _FILE.format(group="1MiB", workers=2)
_A_GROUP_FOR_EACH = _FILE.format(group="8KiB", workers=1)

COPYING = ("copy.slot_created", "copy.begun", "copy.range_stored", "copy.publishing", "copy.published")
CATCHING_UP = (
    "copy.finished", "catchup.write", "catchup.write_done", "catchup.confirming", "catchup.confirmed",
    "recording.CameNear", "recorded.CameNear", "recording.TargetChosen", "recorded.TargetChosen",
    "catchup.move", "catchup.move_done", "recording.CaughtUp",
)  # fmt: skip
HANDED_OVER = ("recorded.CaughtUp", "slot.dropping", "slot.dropped", "recording.TakenOver", "recorded.TakenOver")
APPLYING = (
    "apply.write", "apply.write_done", "ceiling.recording", "ceiling.high_water", "ceiling.recorded",
    "apply.confirming", "apply.confirmed", "apply.write_done:5", "apply.confirmed:3",
)  # fmt: skip
PREPARING = ("prepare.published", "prepare.slot_created", "takeover.claimed", "takeover.demoted")
TAKING_OVER = ("recorded.TargetChosen", "prepare.published", "takeover.claimed", "takeover.demoted")


class Changes:
    """One writer that never rests, until it is left."""

    def __init__(self, source: Database) -> None:
        self._source = source
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        number = 0
        with self._source.connect(autocommit=False) as session:
            while not self._over.wait(0.02):
                number += 1
                session.execute("update public.orders set what = %s where id = %s", [f"w{number}", number % 500])
                session.execute("delete from public.orders where id = %s", [10000 + number])
                session.execute("update public.orders set id = id + 10000 where id = %s", [number])
                session.execute("insert into public.orders values (%s, 'new') on conflict do nothing", [-number])
                session.execute("insert into public.notes values ('again', %s)", [number % 5])
                session.execute(
                    "delete from public.notes where ctid = (select ctid from public.notes where n = %s limit 1)",
                    [number % 7],
                )
                session.commit()


@pytest.fixture
def runs(databases: Databases, tmp_path: Path) -> Iterator[Runs]:
    with databases.source.connect() as session:
        for table in TABLES:
            session.execute(table.create.encode())
        session.execute("alter table public.notes replica identity full")
        session.execute("insert into public.orders select n, 'old ' || n from generate_series(1, 2000) n")
        session.execute("insert into public.notes select 'line', n % 5 from generate_series(1, 300) n")
        for quiet in QUIET:
            session.execute(f"insert into {quiet.table.sql} values (1, 'never changed')".encode())
    runs = Runs(databases, tmp_path, _ONE_GROUP)
    yield runs
    runs.close()


def _die_at(runs: Runs, *failpoints: str) -> None:
    with Changes(runs.databases.source):
        for failpoint in failpoints:
            run = runs.start(PGETL_FAILPOINT=failpoint)
            assert run.wait(40) == KILLED, f"{failpoint} was never passed\n{run.said()}"


def _assert_put_right(runs: Runs) -> None:
    assert runs.until_caught_up(60) == 0, runs.log
    assert_equal(runs.databases, TABLES)
    runs.assert_settled()


def test_it_dies_while_it_prepares(runs: Runs) -> None:
    _die_at(runs, *PREPARING)
    _assert_put_right(runs)


def test_it_dies_while_it_copies(runs: Runs) -> None:
    _die_at(runs, *COPYING)
    _assert_put_right(runs)


@pytest.mark.timeout(240)
def test_it_dies_while_it_catches_up(runs: Runs) -> None:
    _die_at(runs, *CATCHING_UP)
    _assert_put_right(runs)


def test_it_dies_when_it_has_handed_over(runs: Runs) -> None:
    """Groups of one table each, so that every death has a hand-over of its own."""
    runs.text = _A_GROUP_FOR_EACH
    _die_at(runs, *HANDED_OVER)
    _assert_put_right(runs)


def test_it_dies_while_it_applies(runs: Runs) -> None:
    assert runs.until_caught_up() == 0, runs.log
    _die_at(runs, *APPLYING)
    _assert_put_right(runs)


def test_it_dies_again_while_it_takes_over(runs: Runs) -> None:
    """A dead worker has left a hand-over half way; the next ones die while they clean up."""
    _die_at(runs, *TAKING_OVER)
    _assert_put_right(runs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "failpoint", [*PREPARING, *COPYING, "copy.published:3", "copy.finished:2", *CATCHING_UP, *HANDED_OVER, *APPLYING]
)
def test_it_dies_there_alone(runs: Runs, failpoint: str) -> None:
    _die_at(runs, failpoint)
    _assert_put_right(runs)


def test_without_a_failpoint_nothing_dies(runs: Runs) -> None:
    """The measure of the others."""
    assert "PGETL_FAILPOINT" not in os.environ
    with Changes(runs.databases.source):
        assert runs.until_caught_up(60) == 0, runs.log
    _assert_put_right(runs)
