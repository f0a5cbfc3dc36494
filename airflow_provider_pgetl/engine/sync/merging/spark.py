"""The tasks of a merge on Spark's executors: one job for all of them.

The function, with the store's keys in it, goes inside the tasks' closure, over Spark's own channel; what is among the
data of the job are names of files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from py4j.protocol import Py4JError
from pyspark import SparkContext

from airflow_provider_pgetl.engine.destinations.protocol import Answer, Item
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.sync.merging.spreading import answered, given_up, received


class OnExecutors:
    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def __call__(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer | PgetlError]:
        tasks = self._context.parallelize(items, len(items))
        try:
            return received(tasks.map(partial(answered, function)).collect())
        except Py4JError as error:
            raise given_up(str(getattr(error, "java_exception", None) or error)) from None
