"""Ranges of a copy, and tasks of a merge, on a Spark Connect server.

Ranges are one small query per bundle, which returns one row per outcome. A merge is one query, with one input row and
one answer row per task.

The process is only a client, so no JVM is started. The server's workers need what executors need everywhere: Python of
the same version, psycopg, pyarrow, numpy; our own code is sent to them. The connections are part of the query's
function and are sent over the client's channel, as `executors` sends them in its tasks.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from airflow_provider_pgetl.engine.copy.ranges import Endpoints, RangeOutcome, move_ranges
from airflow_provider_pgetl.engine.copy.runners import Bundle, range_given_up
from airflow_provider_pgetl.engine.destinations.protocol import Answer, Item
from airflow_provider_pgetl.engine.merging import answered, given_up, received
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError, told_by_spark
from airflow_provider_pgetl.engine.spark.application import Executors

_AT_ONCE = 4
_COLUMN = "outcome"
_NUMBER, _ANSWER = "number", "answer"


@contextmanager
def connected(remote: str, package: Path) -> Iterator[SparkSession]:
    """Yields a session of the server. `remote` may contain a token. `package` is an archive of our own code."""
    try:
        session = SparkSession.builder.remote(remote).create()
        session.addArtifacts(str(package), pyfile=True)
    except PySparkException as error:
        raise PgetlError(
            ErrorKind.CONNECTION, f"The Spark Connect server cannot be used: {told_by_spark(str(error).strip())}"
        ) from None
    try:
        yield session
    finally:
        session.stop()


class ConnectExecutors(Executors):
    """The executors of a Spark Connect server, by the queries of this session."""

    def __init__(self, session: SparkSession, at_once: int = _AT_ONCE) -> None:
        super().__init__(at_once)
        self._session = session

    def _run_bundle(self, endpoints: Endpoints, bundle: Bundle, tag: str) -> list[RangeOutcome]:
        self._session.addTag(tag)
        try:
            query = self._session.range(0, 1, 1, 1).mapInArrow(partial(_move, endpoints, bundle), f"{_COLUMN} binary")
            return [pickle.loads(row[_COLUMN]) for row in query.collect()]
        except PySparkException as error:
            return [range_given_up(task, str(error).strip()) for task in bundle]

    def _cancel(self, tag: str) -> None:
        self._session.interruptTag(tag)

    def __call__(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer | PgetlError]:
        run = partial(_run, partial(answered, function), list(items))
        try:
            query = self._session.range(0, len(items), 1, len(items))
            rows = query.mapInArrow(run, f"{_NUMBER} long, {_ANSWER} binary").collect()
        except PySparkException as error:
            raise given_up(str(error).strip()) from None
        answers = {row[_NUMBER]: pickle.loads(row[_ANSWER]) for row in rows}
        return received([answers[number] for number in range(len(items))])


def _move(endpoints: Endpoints, bundle: Bundle, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs on the server, for the only row of the query."""
    for _ in (row for batch in batches for row in range(batch.num_rows)):
        for outcome in move_ranges(endpoints, bundle):
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(outcome)], pa.binary())], [_COLUMN])


def _run(
    function: Callable[[Item], object], items: Sequence[Item], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs on the server; each row is the number of an item."""
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        answer = pickle.dumps(function(items[number]))
        yield pa.RecordBatch.from_arrays(
            [pa.array([number], pa.int64()), pa.array([answer], pa.binary())], [_NUMBER, _ANSWER]
        )
