"""Ranges as Spark jobs with one task each.

There is one job per range, or per bundle of small ranges, several at a time, rather than one job for all: an outcome is
available as soon as its range is done, so that tables are published early; the order is kept; and a table that has
failed causes no further cost. A job's overhead is some tens of milliseconds.

Executors on other machines do not have the driver's environment, so the driver resolves the connections and sends them
inside the task's closure, over Spark's own channel: never in Spark's configuration, never in arguments, and not in the
data of the job, which Spark may write to a file.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from functools import partial

from py4j.protocol import Py4JError
from pyspark import SparkContext

from airflow_provider_pgetl.engine.copy.ranges import (
    Bundle,
    Endpoints,
    Outcomes,
    RangeOutcome,
    RangeTask,
    Wanted,
    bundled,
    move_ranges,
    run_in_threads,
)
from airflow_provider_pgetl.engine.destinations.protocol import Answer, Item
from airflow_provider_pgetl.engine.merging import answered, given_up, received
from airflow_provider_pgetl.engine.model.errors import ErrorData, ErrorKind, PgetlError, told_by_spark
from airflow_provider_pgetl.engine.spark.submission import is_local

log = logging.getLogger(__name__)


class SparkRunner:
    """Runs ranges on the executors of this Spark context."""

    def __init__(self, context: SparkContext, at_once: int | None = None) -> None:
        self._context = context
        self._at_once = at_once or context.defaultParallelism

    def run(self, endpoints: Endpoints, tasks: Sequence[RangeTask], wanted: Wanted) -> Outcomes:
        shipped = endpoints if is_local(self._context.master or "") else endpoints.resolved()
        tag = f"pgetl-{uuid.uuid4().hex}"
        return run_in_threads(
            lambda bundle: self._run_bundle(shipped, bundle, tag),
            bundled(tasks, self._at_once),
            wanted,
            self._at_once,
            lambda: self._cancel(tag),
        )

    def _cancel(self, tag: str) -> None:
        try:
            self._context.cancelJobsWithTag(tag)
        except Py4JError as error:
            log.info("Java is gone, and its jobs with it: %s", error)

    def _run_bundle(self, endpoints: Endpoints, bundle: Bundle, tag: str) -> list[RangeOutcome]:
        self._context.addJobTag(tag)
        try:
            return self._context.parallelize(bundle, 1).mapPartitions(partial(move_ranges, endpoints)).collect()
        except Py4JError as error:
            return [_given_up(task, error) for task in bundle]


def _given_up(task: RangeTask, error: Py4JError) -> RangeOutcome:
    """Returns the outcome of a task that Spark could not complete, despite its retries."""
    words = told_by_spark(str(getattr(error, "java_exception", None) or error))
    message = f"Spark gave up range {task.number} of {task.table}: {words}"
    failure = ErrorData.of(PgetlError(ErrorKind.COPY_DIED, message, table=str(task.table)))
    return RangeOutcome(task.table, task.number, failure=failure)


# -- The tasks of a merge on Spark's executors: one job for all of them. -----------------------------------------------
#
# The function contains the keys of the object store and is sent inside the tasks' closure, over Spark's own channel;
# the data of the job consists of file names.


class OnExecutors:
    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def __call__(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer | PgetlError]:
        tasks = self._context.parallelize(items, len(items))
        try:
            return received(tasks.map(partial(answered, function)).collect())
        except Py4JError as error:
            raise given_up(str(getattr(error, "java_exception", None) or error)) from None
