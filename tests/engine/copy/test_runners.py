"""Ranges in threads, in bundles: their order, outcomes as they come, skipping, ending early."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.copy.ranges import RangeOutcome, RangeTask
from airflow_provider_pgetl.engine.copy.runners import Outcomes, bundled, run_in_threads
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.source.range_reading import Range

TABLE = TableName("public", "t")
SCHEMA = TableSchema(TABLE, 1, (), ())


def task(number: int) -> RangeTask:
    return RangeTask(SCHEMA, None, Range(number, TABLE, 1, 1, 0, None), Target("shop", SCHEMA, 1))


def done(one: RangeTask) -> RangeOutcome:
    return RangeOutcome(one.table, one.number)


def run(execute: Callable[[RangeTask], RangeOutcome], count: int, **more: object) -> Outcomes:
    given = {"wanted": lambda _: True, "workers": 2, "stop": lambda: None, **more}
    bundles = [(task(number),) for number in range(count)]
    return run_in_threads(lambda bundle: map(execute, bundle), bundles, **given)  # type: ignore[arg-type]


def numbers(outcomes: Iterator[RangeOutcome | None]) -> list[int]:
    return [outcome.number for outcome in outcomes if outcome is not None]


def test_every_task_has_one_outcome() -> None:
    assert sorted(numbers(run(done, 50))) == list(range(50))


def test_one_worker_keeps_the_order() -> None:
    assert numbers(run(done, 20, workers=1)) == list(range(20))


def test_no_tasks_no_outcomes() -> None:
    assert numbers(run(done, 0)) == []


def test_what_is_no_longer_wanted_is_passed_over() -> None:
    assert numbers(run(done, 6, workers=1, wanted=lambda one: one.number % 2 == 0)) == [0, 2, 4]


def test_outcomes_come_while_others_are_under_way() -> None:
    slow = threading.Event()

    def execute(one: RangeTask) -> RangeOutcome:
        if one.number == 0:
            slow.wait(60)
        return done(one)

    with closing(run(execute, 3)) as outcomes:
        early = [outcome.number for outcome in (next(outcomes), next(outcomes)) if outcome is not None]
        slow.set()
        assert sorted([*early, *numbers(outcomes)]) == [0, 1, 2]
    assert early == [1, 2]


def test_the_reader_may_look_up_while_nothing_happens() -> None:
    release = threading.Event()

    def execute(one: RangeTask) -> RangeOutcome:
        release.wait(60)
        return done(one)

    with closing(run(execute, 1)) as outcomes:
        assert next(outcomes) is None
        release.set()
        assert numbers(outcomes) == [0]


def test_closing_stops_what_is_under_way_and_begins_nothing_more() -> None:
    begun: list[int] = []
    stopped = threading.Event()

    def execute(one: RangeTask) -> RangeOutcome:
        begun.append(one.number)
        if one.number:
            stopped.wait(60)
        return done(one)

    outcomes = run(execute, 10, workers=1, stop=stopped.set)
    assert next(outcomes) == done(task(0))
    while len(begun) < 2:
        time.sleep(0.001)
    outcomes.close()

    assert begun == [0, 1]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pgetl range")]


def test_a_defect_reaches_the_reader() -> None:
    def execute(_: RangeTask) -> RangeOutcome:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        numbers(run(execute, 3))


# -- bundles ----------------------------------------------------------------------------------------------------------


def sized(number: int, size: int) -> RangeTask:
    return replace(task(number), range=replace(task(number).range, size=size))


def test_small_ranges_are_bundled_in_their_order_and_large_ones_go_alone() -> None:
    tasks = [sized(number, 64 << 20 if number < 3 else 8 << 10) for number in range(1000)]
    bundles = bundled(tasks, 2)
    assert [one for bundle in bundles for one in bundle] == tasks
    assert [len(bundle) for bundle in bundles[:3]] == [1, 1, 1]
    assert all(len(bundle) <= 50 and sum(one.size for one in bundle) <= 4 << 20 for bundle in bundles[3:])
    assert len(bundles) < 30


def test_of_few_ranges_every_worker_gets_some() -> None:
    assert [len(bundle) for bundle in bundled([task(number) for number in range(7)], 2)] == [1] * 7
    assert len(bundled([task(number) for number in range(80)], 2)) == 8
    assert bundled([], 2) == []
