"""How a run ends: soon when it is asked to, promptly when it must, and not before what was asked for has arrived."""

import threading
import time

import pytest

from airflow_provider_pgetl.engine.config.pipeline_file import read_pipeline_file
from airflow_provider_pgetl.engine.copy.admission import CopyPool
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.runtime.threads import Flag
from tests.failures.pipeline import PipelineUnderTest
from tests.failures.test_history_with_gaps import drop_slot
from tests.without_spark import LocalPipeline

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
        assert time.monotonic() - asked < 45
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
        assert time.monotonic() - asked < 45
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
        said = run.wait(120)
        assert time.monotonic() - ended < 45
    assert said.code == 3
    assert "does not exist" in said.complaint
    followed.source_options = 'on_slot_lost = "resync"'
    followed.assert_nothing_lost()


class ResetAtTheEnd(LocalPipeline):
    """Somebody resets a table just when all have arrived."""

    resets = 0

    def stream(self, *, until_caught_up: bool, stop: Flag, pool: CopyPool | None = None) -> None:
        super().stream(until_caught_up=until_caught_up, stop=stop, pool=pool)
        self.resets += 1
        if self.resets == 1:
            self.reset(TableName("public", "orders"))


def test_a_bounded_run_ends_with_every_table_ready_whoever_sets_one_back(
    shop: PipelineUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write_file()
    for name, value in shop.environment_of_commands.items():
        monkeypatch.setenv(name, value)
    pipeline = ResetAtTheEnd(read_pipeline_file(shop.file).spec)
    try:
        outcome = pipeline.run(until_caught_up=True, stop=threading.Event())
    finally:
        pipeline.close()
    assert (pipeline.resets, outcome.errored) == (2, {})
    assert shop.phases() == dict.fromkeys(("public.orders", "public.items"), "Ready")
    shop.assert_equal()
