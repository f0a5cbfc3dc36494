"""Who runs the ranges of a copy.

A runner takes ranges in their order, a few at a time, and answers each with its outcome as soon as there is one, so
that a table is published while others are still being copied. A range is run by `transfer.move_range`, a function
without surroundings: all it needs is in the `RangeTask` and the `Endpoints`. It may run twice (a cluster loses
executors); what it does is repeatable.

`LocalRunner` runs ranges in threads of this process: for destinations that live in it, for tests, and where there is no
Spark. `spark.SparkRunner` runs each as a Spark job.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

from airflow_provider_pgetl.engine.sync.copying.transfer import Endpoints, Outcome, RangeTask, move_range

Wanted = Callable[[RangeTask], bool]
_Queue = queue.SimpleQueue[Outcome | BaseException | None]
Outcomes = Generator[Outcome | None, None, None]

_LOOK_UP_SECONDS = 0.2


class RangeRunner(Protocol):
    def run(self, endpoints: Endpoints, tasks: Sequence[RangeTask], wanted: Wanted) -> Outcomes:
        """The outcomes in the order in which they happen, and None now and then, for the reader to look up. A task
        that is no longer `wanted` when its turn comes is passed over. Closing the generator ends what is under way
        and returns when it has ended."""


class LocalRunner:
    """Ranges in threads of this process."""

    def __init__(self, workers: int = 2) -> None:
        self._workers = workers

    def run(self, endpoints: Endpoints, tasks: Sequence[RangeTask], wanted: Wanted) -> Outcomes:
        stopped = threading.Event()
        return run_in_threads(
            lambda task: move_range(endpoints, task, stopped.is_set), tasks, wanted, self._workers, stopped.set
        )


def run_in_threads(
    execute: Callable[[RangeTask], Outcome],
    tasks: Sequence[RangeTask],
    wanted: Wanted,
    workers: int,
    stop: Callable[[], None],
) -> Outcomes:
    """Keep `workers` tasks under way. `stop` is called when the outcomes are wanted no more."""
    waiting = deque(tasks)
    outcomes: _Queue = queue.SimpleQueue()
    threads = [
        threading.Thread(target=_work, args=(execute, waiting, wanted, outcomes), name=f"pgetl range {n}", daemon=True)
        for n in range(min(workers, len(tasks)))
    ]
    for thread in threads:
        thread.start()
    try:
        yield from _received(outcomes, len(threads))
    finally:
        waiting.clear()
        stop()
        for thread in threads:
            thread.join()


def _work(
    execute: Callable[[RangeTask], Outcome],
    waiting: deque[RangeTask],
    wanted: Wanted,
    outcomes: _Queue,
) -> None:
    """One worker, until nothing waits; a defect goes to whoever reads the outcomes."""
    try:
        while waiting:
            task = _next(waiting)
            if task is not None and wanted(task):
                outcomes.put(execute(task))
    except BaseException as defect:
        outcomes.put(defect)
    finally:
        outcomes.put(None)


def _next(waiting: deque[RangeTask]) -> RangeTask | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None


def _received(outcomes: _Queue, workers: int) -> Outcomes:
    while workers:
        try:
            outcome = outcomes.get(timeout=_LOOK_UP_SECONDS)
        except queue.Empty:
            yield None
            continue
        if outcome is None:
            workers -= 1
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            yield outcome
