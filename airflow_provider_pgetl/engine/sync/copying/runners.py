"""Who runs the ranges of a copy.

A runner takes ranges in their order, a few at a time, and answers each with its outcome as soon as there is one, so
that a table is published while others are still being copied. Ranges are run by `transfer.move_ranges`, a function
without surroundings: all it needs is in the `RangeTask`s and the `Endpoints`. It may run twice (a cluster loses
executors); what it does is repeatable. Small ranges are run several in one bundle, as to begin costs more than they do.

`LocalRunner` runs ranges in threads of this process: for destinations that live in it, for tests, and where there is no
Spark. `spark.SparkRunner` runs each as a Spark job.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Protocol

from airflow_provider_pgetl.engine.sync.copying.transfer import Endpoints, Outcome, RangeTask, move_ranges
from airflow_provider_pgetl.engine.sync.runtime import THREADS, Queue, Runtime

Wanted = Callable[[RangeTask], bool]
_Queue = Queue[Outcome | BaseException | None]
Outcomes = Generator[Outcome | None, None, None]

Bundle = tuple[RangeTask, ...]

_LOOK_UP_SECONDS = 0.2
_BUNDLE_BYTES = 4 << 20
_BUNDLE_TASKS = 50
_BUNDLES_EACH = 4


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
        stopped = THREADS.flag()
        return run_in_threads(
            lambda bundle: move_ranges(endpoints, bundle, stopped.is_set),
            bundled(tasks, self._workers),
            wanted,
            self._workers,
            stopped.set,
        )


def bundled(tasks: Sequence[RangeTask], workers: int) -> list[Bundle]:
    """The tasks in their order, in bundles: small enough that each worker gets several."""
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
    execute: Callable[[Bundle], Iterable[Outcome]],
    bundles: Sequence[Bundle],
    wanted: Wanted,
    workers: int,
    stop: Callable[[], None],
    runtime: Runtime = THREADS,
) -> Outcomes:
    """Keep `workers` bundles under way. `stop` is called when the outcomes are wanted no more."""
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
    execute: Callable[[Bundle], Iterable[Outcome]],
    waiting: deque[Bundle],
    wanted: Wanted,
    outcomes: _Queue,
) -> None:
    """One worker, until nothing waits; a defect goes to whoever reads the outcomes."""
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
