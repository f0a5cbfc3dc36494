"""Ranges of a copy, and tasks of a merge, on the executors of the Spark that submitted the application.

A bundle of ranges is a job with one task, whose overhead is some tens of milliseconds.

Executors on other machines do not have the driver's environment, so the driver resolves the connections and sends them
inside the task's closure, over Spark's own channel: never in Spark's configuration, never in arguments, and not in the
data of the job, which Spark may write to a file. So is the function of a merge, which contains the keys of the object
store; the data of its job consists of file names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from py4j.protocol import Py4JError
from pyspark import SparkContext

from airflow_provider_pgetl.engine.copy.ranges import Endpoints, RangeOutcome, move_ranges
from airflow_provider_pgetl.engine.copy.runners import Bundle, range_given_up
from airflow_provider_pgetl.engine.destinations.protocol import Answer, Item
from airflow_provider_pgetl.engine.merging import answered, given_up, received
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.spark.application import Executors
from airflow_provider_pgetl.engine.spark.submission import is_local

log = logging.getLogger(__name__)


class SparkExecutors(Executors):
    """The executors of this Spark context."""

    def __init__(self, context: SparkContext, at_once: int | None = None) -> None:
        super().__init__(at_once or context.defaultParallelism)
        self._context = context

    def _shipped(self, endpoints: Endpoints) -> Endpoints:
        return endpoints if is_local(self._context.master or "") else super()._shipped(endpoints)

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
            return [range_given_up(task, _words(error)) for task in bundle]

    def __call__(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer | PgetlError]:
        tasks = self._context.parallelize(items, len(items))
        try:
            return received(tasks.map(partial(answered, function)).collect())
        except Py4JError as error:
            raise given_up(_words(error)) from None


def _words(error: Py4JError) -> str:
    return str(getattr(error, "java_exception", None) or error)
