"""How a run ends: soon when it is asked to, promptly when it must, and not before what was asked for has arrived."""

import time

import pytest

from tests.failures.pipeline import PipelineUnderTest
from tests.failures.test_history_with_gaps import drop_slot

pytestmark = pytest.mark.servers


def test_caught_up_includes_what_was_committed_just_before(followed: PipelineUnderTest) -> None:
    for number in range(5):
        followed.source.execute("insert into items values (%s, 'just before')", [8000 + number])
        followed.catch_up().assert_well()
        assert followed.destination.execute("select 1 from items where id = %s", [8000 + number])
    followed.assert_nothing_lost()


def test_sigterm_during_a_large_write(followed: PipelineUnderTest) -> None:
    """The write is held up by a lock that somebody has on the destination's table. It is given a moment, and left."""
    with followed.follow() as run, followed.destination.connect(autocommit=False) as somebody:
        somebody.execute("lock table orders in access exclusive mode")
        followed.source.execute("insert into orders select n, 'many', n from generate_series(1000, 200000) n")
        waiting = (
            "select 1 from pg_stat_activity where wait_event_type = 'Lock' and application_name like 'pgetl shop %'"
        )
        run.until(lambda: followed.destination.execute(waiting), "the write is under way", 60)
        asked = time.monotonic()
        said = run.stop()
        assert time.monotonic() - asked < 10
    assert said.code == 0
    assert "Stopping: the write in flight is given a moment." in said.out
    said.assert_presentable()
    followed.assert_nothing_lost()


def test_sigterm_during_a_copy(shop: PipelineUnderTest) -> None:
    shop.source.execute("insert into orders select n, repeat('x', 500), n from generate_series(1000, 7000) n")
    with shop.start("run") as run:
        run.until_said("public.orders: copied 0%")
        asked = time.monotonic()
        said = run.stop()
        assert time.monotonic() - asked < 10
    assert said.code == 0, said
    shop.assert_nothing_lost()


def test_a_copy_that_is_under_way_does_not_keep_a_run_from_ending(followed: PipelineUnderTest) -> None:
    """The stream has met what it cannot get over while a large table is copied."""
    followed.source.execute("insert into orders select n, repeat('x', 500), n from generate_series(1000, 7000) n")
    followed.catch_up().assert_well()
    followed.pgetl("reset", "public.orders").assert_well()
    with followed.start("run") as run:
        run.until_said("public.orders: copied 0%")
        drop_slot(followed)
        ended = time.monotonic()
        said = run.wait(30)
        assert time.monotonic() - ended < 12
    assert said.code == 3
    assert "does not exist" in said.complaint
    followed.source_options = 'on_slot_lost = "resync"'
    followed.assert_nothing_lost()
