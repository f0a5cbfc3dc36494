"""The real Delta-Spark, asked in SQL. One process for many requests: a Java machine takes seconds to start.

with DeltaSpark.start() as spark:
    spark.sql(path, "alter table {table} set tblproperties (delta.enableDeletionVectors = true)")
    rows = spark.sql(path, "delete from {table} where id = 3", "select * from {table}")
"""

from __future__ import annotations

import os
import pickle
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from tests.third_party import environment

Rows = list[tuple[Any, ...]]
_CHILD = Path(__file__).with_name("spark_child.py")


class SparkFailed(Exception):
    """What Spark has said of a statement; or the end of what it printed, if it has ended."""


class DeltaSpark:
    def __init__(self, process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]) -> None:
        self._process = process
        self._folder = folder

    @classmethod
    def start(cls) -> DeltaSpark:
        """A session that starts while its first request is written."""
        found = environment.delta_spark()
        folder = tempfile.TemporaryDirectory(prefix="delta-spark-")
        # Nothing of the project's own Spark; and times as naive datetimes in UTC.
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK", "PYTHON"))}
        with _printed(folder.name).open("wb") as printed:
            process = subprocess.Popen(
                [found.interpreter, _CHILD, found.class_path, f"{folder.name}/warehouse"],
                cwd=folder.name,
                env={**own, "TZ": "UTC", "PYSPARK_PYTHON": str(found.interpreter)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
            )
        return cls(process, folder)

    def sql(self, path: Path | str, *statements: str) -> Rows:
        """What the last of the statements answers. In each, `{table}` is the table in this folder."""
        return self._ask(path, statements)[1]

    def read(self, path: Path | str) -> pa.Table:
        columns, rows = self._ask(path, ["select * from {table}"])
        return pa.Table.from_arrays([pa.array([row[at] for row in rows]) for at in range(len(columns))], names=columns)

    def _ask(self, path: Path | str, statements: Sequence[str]) -> tuple[list[str], Rows]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump([one.replace("{table}", f"delta.`{path}`") for one in statements], self._process.stdin)
            self._process.stdin.flush()
            kind, said = pickle.load(self._process.stdout)
        except (OSError, EOFError) as error:
            printed = _printed(self._folder.name).read_text(errors="replace")
            raise SparkFailed(f"Spark has ended: {printed[-4000:]}") from error
        if kind == "error":
            raise SparkFailed(said)
        columns, rows = said
        return columns, rows

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._folder.cleanup()

    def __enter__(self) -> DeltaSpark:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _printed(folder: str) -> Path:
    return Path(folder) / "printed.log"
