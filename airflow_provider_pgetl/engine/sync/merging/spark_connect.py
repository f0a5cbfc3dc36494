"""The tasks of a merge on a Spark Connect server: one query, a row for each, whose answer is one column."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from airflow_provider_pgetl.engine.destinations.protocol import Answer, Item
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.sync.merging.spreading import answered, given_up, received

_NUMBER, _ANSWER = "number", "answer"


class OnConnectServer:
    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def __call__(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer | PgetlError]:
        run = partial(_run, partial(answered, function), list(items))
        try:
            query = self._session.range(0, len(items), 1, len(items))
            rows = query.mapInArrow(run, f"{_NUMBER} long, {_ANSWER} binary").collect()
        except PySparkException as error:
            raise given_up(str(error).strip()) from None
        answers = {row[_NUMBER]: pickle.loads(row[_ANSWER]) for row in rows}
        return received([answers[number] for number in range(len(items))])


def _run(
    function: Callable[[Item], object], items: Sequence[Item], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What runs on the server: each row says which item it is."""
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        answer = pickle.dumps(function(items[number]))
        yield pa.RecordBatch.from_arrays(
            [pa.array([number], pa.int64()), pa.array([answer], pa.binary())], [_NUMBER, _ANSWER]
        )
