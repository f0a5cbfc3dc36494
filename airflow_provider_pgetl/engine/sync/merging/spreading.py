"""Where the tasks of a merge run: in threads of this process, on the executors of a Spark, on a Spark Connect server.

A task's failure comes back as data; an exception would not survive the way. Passing trouble is waited out in the task.
What Spark itself cannot run to its end, however often it tries, ends the merge.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from airflow_provider_pgetl.engine.destinations.protocol import Answer, Item
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.sync.copying.outcome import Failure, told_by_spark
from airflow_provider_pgetl.engine.sync.copying.retrying import persistently

log = logging.getLogger(__name__)


def answered(function: Callable[[Item], Answer], item: Item) -> Answer | Failure:
    """What a task does, wherever it runs."""
    try:
        return persistently(lambda: function(item))
    except PgetlError as error:
        return Failure.of(error)
    except Exception as defect:
        # Whatever a library raises must not be taken for the end of Spark.
        log.exception("A task failed")
        return Failure.of(PgetlError(ErrorKind.INTERNAL, f"A task met {type(defect).__name__}: {defect}."))


def received(answers: Sequence[Answer | Failure]) -> list[Answer | PgetlError]:
    return [answer.error if isinstance(answer, Failure) else answer for answer in answers]


def given_up(words: str) -> PgetlError:
    return PgetlError(
        ErrorKind.RESOURCES,
        f"Spark gave up the merge: {told_by_spark(words)}",
        remedy="Look into the executors' logs; then merge again: what has landed is safe.",
    )


class InThreads:
    """In this process, a few at once."""

    def __init__(self, workers: int = 2) -> None:
        self._workers = workers

    def __call__(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer | PgetlError]:
        with ThreadPoolExecutor(self._workers, "pgetl merge") as pool:
            return received(list(pool.map(partial(answered, function), items)))
