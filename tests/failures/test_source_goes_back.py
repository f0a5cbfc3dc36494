"""The source is put back to an earlier state of its storage: the same system, the same timeline, and in time as much
WAL as before, but other transactions. What it sends again tells. A crash is no such thing."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.installations import Account
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases, Server, StopMode
from tests.failures.pipeline import PipelineUnderTest
from tests.waiting import until

pytestmark = pytest.mark.servers


@pytest.fixture
def restorable(
    own_server: Server, server16: Server, state_database: Database, tmp_path: Path
) -> Iterator[PipelineUnderTest]:
    """A pipeline whose source has a server of its own."""
    destination = server16.create_database(f"restored_{os.getpid()}")
    databases = Databases(own_server.create_database("source"), destination)
    pipeline = PipelineUnderTest(databases, state_database, tmp_path)
    pipeline.fill()
    yield pipeline
    pipeline.close()
    server16.drop_database(destination.name)


def snapshot_of(server: Server, mode: StopMode = "fast") -> Path:
    kept = server.data.with_name("snapshot")
    server.stop(mode)
    shutil.copytree(server.data, kept, symlinks=True)
    server.resume()
    return kept


def put_back(server: Server, kept: Path, *, promoted: bool = False) -> None:
    """`promoted`: by a recovery to a point in time, or as a standby that was behind: it goes on in a new timeline."""
    server.stop()
    shutil.rmtree(server.data)
    kept.rename(server.data)
    account = Account.for_servers()
    for path in (server.data, *server.data.rglob("*")):
        account.own(path, 0o700 if path.is_dir() else 0o600)
    if promoted:
        (server.data / "recovery.signal").touch()
        server.settings |= {"restore_command": "false", "recovery_target_action": "promote"}
    server.resume()
    with server.connect() as session:
        until(lambda: session.execute("select not pg_is_in_recovery()").fetchone() == (True,))


def note(shop: PipelineUnderTest, text: str) -> None:
    shop.source.execute("insert into items select coalesce(max(id), 0) + 1, %s from items", [text])


def arrived(shop: PipelineUnderTest, text: str) -> Callable[[], bool]:
    return shop.arrives(f"select 1 from items where what = '{text}'")


def outgrow(shop: PipelineUnderTest) -> None:
    """Until its WAL is longer than it was in the other history."""
    for number in range(3):
        note(shop, f"another history {number}")
    shop.source.execute("create table ballast as select repeat('x', 1000) from generate_series(1, 3000)")
    note(shop, "the end of another history")


def assert_found(shop: PipelineUnderTest, complaint: str) -> None:
    """By whoever runs next, in the same words; and the way out leads to equal tables."""
    assert "the source went back to an earlier state: " in complaint
    assert "which it sent before" in complaint
    again = shop.catch_up()
    assert again.code == 3
    assert "the source went back to an earlier state: " in again.complaint
    shop.source_options = 'on_slot_lost = "resync"'
    assert shop.catch_up().code == 0
    shop.assert_nothing_lost()


def test_the_source_is_put_back_under_a_run(restorable: PipelineUnderTest) -> None:
    shop, server = restorable, restorable.source.server
    with shop.follow() as run:
        kept = snapshot_of(server)  # for which the server was restarted: that is nothing
        note(shop, "lost")
        run.until(arrived(shop, "lost"), "what will be lost had arrived")
        run.until(lambda: acknowledged(shop), "it was acknowledged")
        with run.stands_still():
            put_back(server, kept)
            outgrow(shop)
        said = run.wait(60)
    assert said.code == 3
    assert_found(shop, said.complaint)


@pytest.mark.slow
def test_the_source_fails_over_to_one_that_was_behind(restorable: PipelineUnderTest) -> None:
    shop, server = restorable, restorable.source.server
    with shop.follow() as run:
        kept = snapshot_of(server)
        note(shop, "lost")
        run.until(arrived(shop, "lost"), "what will be lost had arrived")
        run.until(lambda: acknowledged(shop), "it was acknowledged")
        with run.stands_still():
            put_back(server, kept, promoted=True)
            outgrow(shop)
        said = run.wait(60)
    assert said.code == 3
    assert "timeline 2 branched at" in said.complaint
    assert "timeline 2 branched at" in shop.catch_up().complaint
    shop.source_options = 'on_slot_lost = "resync"'
    assert shop.catch_up().code == 0
    shop.assert_nothing_lost()


@pytest.mark.slow
def test_the_source_fails_over_to_one_that_has_everything(restorable: PipelineUnderTest) -> None:
    shop, server = restorable, restorable.source.server
    with shop.follow() as run:
        for number in range(2):
            with run.stands_still():
                # A worker that stands still does not answer a server that shuts down in order.
                put_back(server, snapshot_of(server, "immediate"), promoted=True)
            note(shop, f"after {number}")
            run.until(arrived(shop, f"after {number}"), "it went on")
        said = run.stop()
    assert said.code == 0, said
    shop.assert_nothing_lost()


def acknowledged(shop: PipelineUnderTest) -> bool:
    """Everything that has been committed."""
    statement = """select confirmed_flush_lsn >= pg_current_wal_flush_lsn()
                   from pg_replication_slots where slot_name = %s"""
    return shop.source.execute(statement, [shop.apply_slot]) == [(True,)]


def stamped(shop: PipelineUnderTest) -> int:
    ((changes,),) = shop.destination.execute("select changes from pgetl.destination_fence")
    return int(changes)


@pytest.mark.slow
@pytest.mark.parametrize("outgrown", [True, False])
def test_the_source_is_put_back_between_two_runs(restorable: PipelineUnderTest, outgrown: bool) -> None:
    shop, server = restorable, restorable.source.server
    shop.catch_up().assert_well()
    kept = snapshot_of(server)
    note(shop, "lost")
    shop.catch_up().assert_well()
    put_back(server, kept)
    if outgrown:
        outgrow(shop)
        assert_found(shop, shop.catch_up().complaint)
        return
    assert "which was already seen: it was restored" in shop.catch_up().complaint
    shop.source_options = 'on_slot_lost = "resync"'
    assert shop.catch_up().code == 0
    shop.assert_nothing_lost()


def test_the_source_is_put_back_with_the_state_that_it_holds(restorable: PipelineUnderTest) -> None:
    """So nothing there tells. The destination knows how much that state has been through."""
    shop, server = restorable, restorable.source.server
    shop.state = shop.source
    shop.environment["TEST_WATCH_SECONDS"] = "1"
    with shop.follow() as run:
        kept = snapshot_of(server)
        for text in ("lost", "lost as well"):
            note(shop, text)
            run.until(arrived(shop, text), "what will be lost had arrived")
            ((known,),) = shop.state.execute("select changes from pgetl.pipelines")
            run.until(lambda known=known: stamped(shop) >= known, "the destination knew of it")
        run.kill()
    put_back(server, kept)
    outgrow(shop)
    said = shop.catch_up()
    assert said.code == 3
    assert "or this store was lost, or restored from a backup, since" in said.complaint
    shop.pgetl("destroy", "--yes").assert_well()
    shop.assert_nothing_lost()


@pytest.mark.slow
def test_a_run_that_may_resync_copies_everything_again_by_itself(restorable: PipelineUnderTest) -> None:
    shop, server = restorable, restorable.source.server
    shop.source_options = 'on_slot_lost = "resync"'
    with shop.follow() as run:
        kept = snapshot_of(server)
        note(shop, "lost")
        run.until(arrived(shop, "lost"), "what will be lost had arrived")
        run.until(lambda: acknowledged(shop), "it was acknowledged")
        with run.stands_still():
            put_back(server, kept)
            outgrow(shop)
        run.until(arrived(shop, "the end of another history"), "the other history had arrived")
        note(shop, "later")
        run.until(arrived(shop, "later"), "it went on")
        run.stop().assert_well()
    shop.assert_nothing_lost()


def test_a_source_that_crashes_is_the_same(restorable: PipelineUnderTest) -> None:
    """What it has sent was on its disk. That its slots' progress was not is no harm, nor is what was never sent."""
    shop, server = restorable, restorable.source.server
    with shop.follow() as run:
        for number, end in enumerate((server.kill, lambda: server.stop("immediate"))):
            note(shop, f"before {number}")
            run.until(arrived(shop, f"before {number}"), "it had arrived")
            run.until(lambda: acknowledged(shop), "it was acknowledged")
            with shop.source.connect() as session:
                session.execute("set synchronous_commit = off; update orders set amount = amount + 1")
            end()
            server.resume()
            note(shop, f"after {number}")
            run.until(arrived(shop, f"after {number}"), "it went on")
        said = run.stop()
    assert said.code == 0, said
    assert "Beginning anew" not in said.out
    shop.assert_nothing_lost()
