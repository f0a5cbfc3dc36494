"""The state is set back to an earlier one, as from a backup: never is a table Ready and different."""

from collections.abc import Callable

import pytest

from tests.failures.pipeline import PipelineUnderTest, Running

pytestmark = pytest.mark.servers

_TABLES = "select tablename::text from pg_tables where schemaname = 'pgetl' order by 1"


def back_up(shop: PipelineUnderTest) -> None:
    with shop.state.connect(autocommit=False) as session:
        session.execute("create schema backup")
        for (name,) in session.execute(_TABLES).fetchall():
            session.execute(f"create table backup.{name} as table pgetl.{name}".encode())


def restore(shop: PipelineUnderTest) -> None:
    """At once, and not seen by who asks for news."""
    with shop.state.connect(autocommit=False) as session:
        session.execute("set session_replication_role = replica")
        for (name,) in session.execute(_TABLES).fetchall():
            session.execute(f"delete from pgetl.{name}".encode())
            session.execute(f"insert into pgetl.{name} overriding system value table backup.{name}".encode())


def copy_items_again(shop: PipelineUnderTest, run: Running) -> None:
    shop.pgetl("reset", "public.items").assert_well()
    run.until(lambda: run.said.out.count("public.items: Ready") == 2, "the table was copied again")


def apply_changes(shop: PipelineUnderTest, run: Running) -> None:
    shop.change_something()
    run.until(shop.arrives("select 1 from items where what = 'later'"), "the change has arrived")
    ((known,),) = shop.state.execute("select (max(boundary) - '0/0')::bigint from backup.progress")
    run.until(lambda: confirmed(shop) > known, "the source was told of more than the backup knows")


def confirmed(shop: PipelineUnderTest) -> int:
    statement = "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where slot_name = %s"
    ((position,),) = shop.source.execute(statement, [shop.apply_slot])
    return int(position)


@pytest.mark.parametrize(
    ("since", "why"),
    [
        (copy_items_again, "or this store was lost, or restored from a backup, since"),
        (apply_changes, "was confirmed by another client, or made anew"),
    ],
)
def test_what_was_done_under_the_same_epoch_since_is_noticed(
    shop: PipelineUnderTest, since: Callable[[PipelineUnderTest, Running], None], why: str
) -> None:
    """A worker that starts raises the epoch, which the destination remembers; this one ran on."""
    with shop.follow() as run:
        back_up(shop)
        since(shop, run)
        run.kill()
    restore(shop)
    shop.change_something()
    said = shop.catch_up()
    assert (said.code, why in said.complaint) == (3, True), said
    shop.pgetl("destroy", "--yes").assert_well()
    shop.assert_nothing_lost()


@pytest.mark.slow
def test_a_run_ends_whose_state_is_set_back_under_it(shop: PipelineUnderTest) -> None:
    with shop.follow() as run:
        back_up(shop)
        copy_items_again(shop, run)
        restore(shop)
        shop.change_something()
        said = run.wait()
    assert said.code == 1
    assert "was set back to an earlier one while this process was at work" in said.complaint
    assert shop.catch_up().code == 3
    shop.pgetl("destroy", "--yes").assert_well()
    shop.assert_nothing_lost()
