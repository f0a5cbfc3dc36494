"""Merges the changes that have landed beside a pipeline's tables into them: the Spark application behind `pgetl merge`
and the Airflow task `merge`.

    spark-submit … merge_changes.py JOB_FILE [--lifeline FIFO]

JOB_FILE contains a `MergeJob`; `airflow_provider_pgetl.engine.spark.application` describes the rest. When stopped, it
leaves each table as its last commit made it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from airflow_provider_pgetl.engine.config.jobs import MergeJob, MergeResult
from airflow_provider_pgetl.engine.merging import merge_landed
from airflow_provider_pgetl.engine.model.errors import ErrorData, PgetlError
from airflow_provider_pgetl.engine.spark.application import Call, executors_of, run_application
from airflow_provider_pgetl.engine.spark.submission import MERGE


def main(arguments: Sequence[str] | None = None) -> int:
    return run_application(MERGE, merge, arguments)


def merge(call: Call) -> MergeResult:
    """Merge what has landed beside a pipeline's tables into them."""
    try:
        job = MergeJob.from_json(call.job)
        with executors_of(call) as executors:
            return merge_landed(job, executors, call.report, call.stop)
    except PgetlError as error:
        return MergeResult(failure=ErrorData.of(error))


if __name__ == "__main__":
    sys.exit(main())
