"""Copies the tables of one job: the Spark application behind `pgetl run`, `pgetl copy` and the Airflow tasks.

    spark-submit … copy_table.py JOB_FILE [--lifeline FIFO]

JOB_FILE contains a `CopyJob`; `airflow_provider_pgetl.engine.spark.application` describes the rest. When stopped, it
removes what it staged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from airflow_provider_pgetl.engine.config.jobs import CopyJob
from airflow_provider_pgetl.engine.config.secrets import resolve
from airflow_provider_pgetl.engine.copy.attempt import copy_group
from airflow_provider_pgetl.engine.copy.ranges import RangeRunner
from airflow_provider_pgetl.engine.model.errors import ErrorData, PgetlError
from airflow_provider_pgetl.engine.model.results import CopyResult
from airflow_provider_pgetl.engine.spark.application import Call, run_application
from airflow_provider_pgetl.engine.spark.submission import COPY
from airflow_provider_pgetl.engine.state.opening import open_store


def main(arguments: Sequence[str] | None = None) -> int:
    return run_application(COPY, copy, arguments)


def copy(call: Call) -> CopyResult:
    """Copy the tables of one job."""
    try:
        job = CopyJob.from_json(call.job)
        store = open_store(resolve(job.spec.state), job.spec.id, in_source=job.spec.state_uri is None)
        try:
            with _runner(call) as runner:
                return copy_group(job, store, runner, call.report, call.stop)
        finally:
            store.close()
    except PgetlError as error:
        return CopyResult(0, failure=ErrorData.of(error))


@contextmanager
def _runner(call: Call) -> Iterator[RangeRunner]:
    """Yields a runner for the Spark that submitted this program, or for the Spark Connect server that the call
    names."""
    if call.remote is None:
        from pyspark import SparkContext

        from airflow_provider_pgetl.engine.spark.executors import SparkRunner

        with SparkContext() as context:
            yield SparkRunner(context)
        return
    # This needs only the client of pyspark, which has neither a SparkContext nor py4j.
    from airflow_provider_pgetl.engine.spark.connect import ConnectRunner, connected

    with connected(call.remote, call.package) as session:
        yield ConnectRunner(session)


if __name__ == "__main__":
    sys.exit(main())
