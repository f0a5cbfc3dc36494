"""Copies the tables of one job: the Spark application behind `pgetl run`, `pgetl copy` and the Airflow tasks.

    spark-submit … copy_table.py JOB_FILE [--lifeline FIFO]

JOB_FILE contains a `CopyJob`; `airflow_provider_pgetl.engine.spark.application` describes the rest. When stopped, it
removes what it staged.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyResult
from airflow_provider_pgetl.engine.config.secrets import resolve
from airflow_provider_pgetl.engine.copy.attempt import copy_group
from airflow_provider_pgetl.engine.model.errors import ErrorData, PgetlError
from airflow_provider_pgetl.engine.spark.application import Call, executors_of, run_application
from airflow_provider_pgetl.engine.spark.submission import COPY
from airflow_provider_pgetl.engine.state.store import open_store


def main(arguments: Sequence[str] | None = None) -> int:
    return run_application(COPY, copy, arguments)


def copy(call: Call) -> CopyResult:
    """Copy the tables of one job."""
    try:
        job = CopyJob.from_json(call.job)
        store = open_store(resolve(job.spec.state), job.spec.id, in_source=job.spec.state_uri is None)
        try:
            with executors_of(call) as executors:
                return copy_group(job, store, executors, call.report, call.stop)
        finally:
            store.close()
    except PgetlError as error:
        return CopyResult(0, failure=ErrorData.of(error))


if __name__ == "__main__":
    sys.exit(main())
