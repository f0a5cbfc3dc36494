"""Copy the tables of one job: the Spark application behind `pgetl run`, `pgetl copy` and the Airflow tasks.

    spark-submit … copy_table.py JOB_FILE [--lifeline FIFO]

JOB_FILE holds a `CopyJob`; `spark_main` tells the rest. Stopped, it takes away what it staged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.secrets import resolve
from airflow_provider_pgetl.engine.state.opening import open_store
from airflow_provider_pgetl.engine.sync.applications import COPY
from airflow_provider_pgetl.engine.sync.copying.driver import copy_group
from airflow_provider_pgetl.engine.sync.copying.job import CopyJob
from airflow_provider_pgetl.engine.sync.copying.outcome import CopyResult, Failure
from airflow_provider_pgetl.engine.sync.copying.runners import RangeRunner
from airflow_provider_pgetl.engine.sync.spark_main import Call, run_application


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
        return CopyResult(0, failure=Failure.of(error))


@contextmanager
def _runner(call: Call) -> Iterator[RangeRunner]:
    """Of the Spark that submitted this, or of the Spark Connect server that the call names."""
    if call.remote is None:
        from pyspark import SparkContext

        from airflow_provider_pgetl.engine.sync.copying.spark import SparkRunner

        with SparkContext() as context:
            yield SparkRunner(context)
        return
    # Of pyspark this needs the client only, which has neither a SparkContext nor py4j.
    from airflow_provider_pgetl.engine.sync.copying.spark_connect import ConnectRunner, connected

    with connected(call.remote, call.package) as session:
        yield ConnectRunner(session)


if __name__ == "__main__":
    sys.exit(main())
