"""Runners of ranges.

A runner takes ranges in their order, several at a time, and yields the outcome of each as soon as there is one, so that
a table is published while others are still being copied. It runs them with `move_ranges`, which depends on nothing but
its arguments, the `RangeTask`s and the `Endpoints`. A range may run twice (a cluster loses executors); running it is
repeatable. Several small ranges run in one bundle, because starting a task costs more than moving them.

`LocalRunner` runs ranges in threads of this process: for destinations in its memory, for tests, and where there is no
Spark. `executors.SparkExecutors` runs each bundle as a Spark job.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Protocol

from airflow_provider_pgetl.engine.copy.ranges import Endpoints, RangeOutcome, RangeTask, move_ranges
from airflow_provider_pgetl.engine.model.errors import ErrorData, ErrorKind, PgetlError, told_by_spark
from airflow_provider_pgetl.engine.runtime.threads import THREADS, Queue, Runtime

Wanted = Callable[[RangeTask], bool]
_Queue = Queue[RangeOutcome | BaseException | None]
Outcomes = Generator[RangeOutcome | None, None, None]

Bundle = tuple[RangeTask, ...]

_LOOK_UP_SECONDS = 0.2
_BUNDLE_BYTES = 4 << 20
_BUNDLE_TASKS = 50
_BUNDLES_EACH = 4


def range_given_up(task: RangeTask, words: str) -> RangeOutcome:
    """Returns the outcome of a task that Spark could not complete, despite its retries. `words`: what Spark said."""
    message = f"Spark gave up range {task.number} of {task.table}: {told_by_spark(words)}"
    failure = ErrorData.of(PgetlError(ErrorKind.COPY_DIED, message, table=str(task.table)))
    return RangeOutcome(task.table, task.number, failure=failure)


class RangeRunner(Protocol):
    def run(self, endpoints: Endpoints, tasks: Sequence[RangeTask], wanted: Wanted) -> Outcomes:
        """Yields the outcomes in the order in which they occur, and None now and then, so that the caller can do other
        work. A task that is no longer `wanted` when its turn comes is skipped. Closing the generator ends the running
        tasks and returns when they have ended."""


class LocalRunner:
    """Runs ranges in threads of this process."""

    def __init__(self, workers: int = 2) -> None:
        self._workers = workers

    def run(self, endpoints: Endpoints, tasks: Sequence[RangeTask], wanted: Wanted) -> Outcomes:
        stopped = THREADS.flag()
        return run_in_threads(
            lambda bundle: move_ranges(endpoints, bundle, stopped.is_set),
            bundled(tasks, self._workers),
            wanted,
            self._workers,
            stopped.set,
        )


def bundled(tasks: Sequence[RangeTask], workers: int) -> list[Bundle]:
    """Returns the tasks in their order, in bundles small enough that each worker gets several."""
    most = max(1, min(_BUNDLE_TASKS, len(tasks) // (workers * _BUNDLES_EACH)))
    bundles: list[list[RangeTask]] = []
    size = 0
    for task in tasks:
        if not bundles or len(bundles[-1]) >= most or size + task.size > _BUNDLE_BYTES:
            bundles.append([])
            size = 0
        bundles[-1].append(task)
        size += task.size
    return [tuple(bundle) for bundle in bundles]


def run_in_threads(
    execute: Callable[[Bundle], Iterable[RangeOutcome]],
    bundles: Sequence[Bundle],
    wanted: Wanted,
    workers: int,
    stop: Callable[[], None],
    runtime: Runtime = THREADS,
) -> Outcomes:
    """Keeps `workers` bundles running. Calls `stop` when the outcomes are no longer wanted."""
    waiting = deque(bundles)
    outcomes: _Queue = runtime.queue()
    threads = [
        runtime.thread(lambda: _work(execute, waiting, wanted, outcomes), f"pgetl range {number}")
        for number in range(min(workers, len(waiting)))
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
    execute: Callable[[Bundle], Iterable[RangeOutcome]],
    waiting: deque[Bundle],
    wanted: Wanted,
    outcomes: _Queue,
) -> None:
    """Runs bundles until none waits; puts an exception into the queue, for the thread that reads the outcomes."""
    try:
        while waiting:
            bundle = tuple(task for task in _next(waiting) if wanted(task))
            for outcome in execute(bundle) if bundle else ():
                outcomes.put(outcome)
    except BaseException as defect:
        outcomes.put(defect)
    finally:
        outcomes.put(None)


def _next(waiting: deque[Bundle]) -> Bundle:
    try:
        return waiting.popleft()
    except IndexError:
        return ()


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
