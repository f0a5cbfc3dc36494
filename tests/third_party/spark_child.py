"""Delta-Spark in a process of its own. `delta_spark.DeltaSpark` runs it, with the interpreter of its environment.

Requests come on standard input, answers go to standard output, each a pickle: a list of statements, and what the last
of them has answered or why one has failed. What Spark prints goes to standard error.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, BinaryIO

from pyspark.sql import SparkSession

_SETTINGS = {
    # Statements are few and tables small: most of the time is the Java machine's own.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(class_path: str, warehouse: str) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.driver.extraClassPath", class_path)
    for name, value in (_SETTINGS | {"spark.sql.warehouse.dir": warehouse}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def answer(spark: SparkSession, statements: list[str]) -> tuple[str, Any]:
    columns: list[str] = []
    rows: list[tuple[Any, ...]] = []
    try:
        for statement in statements:
            frame = spark.sql(statement)
            columns, rows = frame.columns, [tuple(row) for row in frame.collect()] if frame.columns else []
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"
    return "rows", (columns, rows)


def serve(spark: SparkSession, requests: BinaryIO, answers: BinaryIO) -> None:
    while True:
        try:
            statements = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(answer(spark, statements), answers)
        answers.flush()


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Java prints to standard output, too
    serve(session(*sys.argv[1:]), sys.stdin.buffer, replies)
