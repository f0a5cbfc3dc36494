"""What is said of a task that Spark gave up."""

import pytest

from airflow_provider_pgetl.engine.model.errors import told_by_spark

IN_PYTHON = """org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] Thrown: Traceback (most recent call last):
  File "worker.py", line 3592, in main
    raise ValueError: no
ModuleNotFoundError: No module named 'pyarrow'
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (IN_PYTHON, "ModuleNotFoundError: No module named 'pyarrow'."),
        (
            "org.apache.spark.SparkException: Job 3 cancelled\n\tat somewhere",
            "org.apache.spark.SparkException: Job 3 cancelled.",
        ),
        ("An error occurred while calling o1.x", "An error occurred while calling o1.x."),
        ("", "."),
    ],
)
def test_one_line_for_people(words: str, told: str) -> None:
    assert told_by_spark(words) == told
