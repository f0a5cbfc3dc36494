"""History that has a gap: it is refused with its remedy, and where resyncing is declared, bridged by copying again."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Databases, Server
from tests.comparing import assert_equal, differences
from tests.runs import KILLED, Runs
from tests.shop import SMALL_SHOP, create_small_shop, small_file
from tests.trade import Changes

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("source_server", [16], indirect=True)]

RESYNC = small_file(source='on_slot_lost = "resync"')


def _follow(runs: Runs) -> None:
    """Everything is Ready, and something has been applied."""
    assert runs.until_caught_up() == 0, runs.log
    _change(runs)
    assert runs.until_caught_up() == 0, runs.log


def _change(runs: Runs) -> None:
    with Changes(runs.databases.source) as changes:
        changes.wait_for(20)


def _assert_refused(runs: Runs, *words: str) -> None:
    slots = runs.slots()
    assert runs.until_caught_up() == 3, runs.log
    for word in words:
        assert word in runs.log
    assert runs.slots() == slots


def _assert_bridged(runs: Runs) -> None:
    runs.text = RESYNC
    _change(runs)
    assert runs.until_caught_up() == 0, runs.log
    assert_equal(runs.databases, SMALL_SHOP)
    runs.assert_settled()


@pytest.mark.slow
def test_a_destination_restored_from_a_backup(runs: Runs) -> None:
    _follow(runs)
    server, name = runs.databases.destination.server, runs.databases.destination.name
    server.create_database(f"{name}_backup", template=name)
    _change(runs)
    assert runs.until_caught_up() == 0, runs.log
    server.drop_database(name)
    server.create_database(name, template=f"{name}_backup")
    server.drop_database(f"{name}_backup")
    assert differences(runs.databases, SMALL_SHOP)
    _assert_refused(runs, "restored", "public.orders")
    _assert_bridged(runs)


@pytest.mark.slow
def test_a_destination_restored_while_a_table_catches_up(runs: Runs) -> None:
    """The group's slot was confirmed already: what is lost comes from nowhere again."""
    assert runs.start(PGETL_FAILPOINT="recording.CameNear").wait(60) == KILLED, runs.log
    server, name = runs.databases.destination.server, runs.databases.destination.name
    server.create_database(f"{name}_backup", template=name)
    for number in range(12):  # so much that it is not handed over before it has been confirmed
        runs.databases.source.execute("update orders set what = repeat(%s, 700)", [chr(ord("a") + number)])
    written = False
    while not written:  # and, in the last turn, confirmed
        written = bool(runs.databases.destination.execute("select 1 from orders where length(what) = 700 limit 1"))
        assert runs.start(PGETL_FAILPOINT="catchup.confirmed:2").wait(60) == KILLED, runs.log
    assert runs.phases()["public.orders"] in ("FinishedCopy", "SyncWait")
    server.drop_database(name)
    server.create_database(name, template=f"{name}_backup")
    server.drop_database(f"{name}_backup")
    _assert_refused(runs, "restored", "public.orders")
    _assert_bridged(runs)


@pytest.mark.slow
def test_the_apply_slot_was_dropped(runs: Runs) -> None:
    _follow(runs)
    runs.databases.source.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
    _change(runs)
    _assert_refused(runs, "_apply does not exist any more")
    _assert_bridged(runs)


def test_the_apply_slot_is_dropped_while_it_is_streamed_from(runs: Runs) -> None:
    _follow(runs)
    run = runs.start()
    with Changes(runs.databases.source) as changes:
        changes.wait_for(20)
        _drop_in_use(runs)
        assert run.wait(120) == 3, run.said()
    _assert_refused(runs, "_apply does not exist any more")
    _assert_bridged(runs)


def _drop_in_use(runs: Runs) -> None:
    """Waits until the slot is streamed from; then wins the race against whoever connects again."""
    give_up_at = time.monotonic() + 60
    while not runs.databases.source.execute("select 1 from pg_replication_slots where active"):
        assert time.monotonic() < give_up_at, "nothing streams"
        time.sleep(0.1)
    with runs.databases.source.connect() as session:
        for _ in range(10_000):
            try:
                session.execute(
                    """select pg_terminate_backend(active_pid) from pg_replication_slots where active;
                       select pg_drop_replication_slot(slot_name) from pg_replication_slots"""
                )
                return
            except psycopg.errors.ObjectInUse:
                continue
    raise AssertionError("the slot could not be dropped")


@pytest.mark.slow
def test_the_apply_slot_was_advanced_by_somebody_else(runs: Runs) -> None:
    _follow(runs)
    _change(runs)
    runs.databases.source.execute(
        "select pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) from pg_replication_slots"
    )
    _assert_refused(runs, "was confirmed by somebody else")
    _assert_bridged(runs)


@pytest.mark.slow
def test_a_table_was_taken_out_of_the_publication_and_put_back(runs: Runs) -> None:
    _follow(runs)
    runs.databases.source.execute("alter publication pgetl_matrix drop table public.orders")
    _change(runs)
    runs.databases.source.execute("alter publication pgetl_matrix add table public.orders")
    _assert_refused(runs, "public.orders", "taken out of the publication")
    _assert_bridged(runs)


@pytest.mark.slow
def test_a_table_was_dropped_and_created_again(runs: Runs) -> None:
    _follow(runs)
    runs.databases.source.execute(
        """drop table public.orders; create table public.orders (id int primary key, what text);
           insert into public.orders values (7, 'another')"""
    )
    _assert_refused(runs, "public.orders", "dropped and created again")
    _assert_bridged(runs)


@pytest.fixture
def restorable(tmp_path: Path) -> Iterator[Databases]:
    """A source whose files can be put back."""
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else tmp_path
    data = folder / f"restorable-{tmp_path.name}"
    with Server.start(16, directory=data) as source, Server.start(16) as destination:
        yield Databases(source.create_database("source"), destination.create_database("destination"))
    shutil.rmtree(data)


@pytest.mark.slow
def test_a_source_restored_from_a_backup(restorable: Databases, tmp_path: Path, source_server: Server) -> None:
    create_small_shop(restorable.source)
    runs = Runs(restorable, tmp_path, small_file(), state=restorable.destination)
    _follow(runs)
    server = restorable.source.server
    backup = server.data.with_name("backup-of-" + server.data.name)
    server.stop()
    shutil.copytree(server.data, backup, symlinks=True)
    _own_alike(server.data, backup)
    server.resume()
    _change(runs)
    assert runs.until_caught_up() == 0, runs.log
    server.stop()
    shutil.rmtree(server.data)
    backup.rename(server.data)
    server.resume()
    _assert_refused(runs, "restored")
    _assert_bridged(runs)
    runs.close()


def _own_alike(original: Path, copy: Path) -> None:
    owner = original.stat()
    for path in (copy, *copy.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)
