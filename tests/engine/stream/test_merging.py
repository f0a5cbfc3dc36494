"""A merge from its submission to the table: the pass over many tables, spark-submit, the executors, and its death."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_pgetl.engine.config.jobs import MergeJob, MergeResult
from airflow_provider_pgetl.engine.config.spec import DestinationSpec, PipelineSpec, SourceSpec, SparkSpec, TableSpec
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta.log.storage import safe
from airflow_provider_pgetl.engine.destinations.delta.merge.landing import Landing
from airflow_provider_pgetl.engine.merging import merge_landed
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import Noted, Report, nobody
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema, written
from airflow_provider_pgetl.engine.spark.submission import MERGE, submit
from airflow_provider_pgetl.testing.builders import Line, Replica, sample_schema
from tests.engine.destinations.delta.reading import rows_of
from tests.local_merge import InThreads

SECRET = "the lake's own secret"
WEIRD = TableName("public", 'Wei.rd "T"')
ANN: Line = (b"1", b"Ann", b"x")
OPTIONS = {"merge": "spark", "storage": {"AWS_SECRET_ACCESS_KEY": "env:PGETL_TEST_LAKE_SECRET"}}


class Lake:
    """Tables of several files, beside each of which something has landed."""

    def __init__(self, folder: Path, tables: int) -> None:
        self.folder = folder
        self.destination = DeltaDestination(str(folder), "shop", {"merge": "spark"})
        self.replicas = [self._replica(sample_schema()) for _ in range(tables - 1)]
        self.replicas.append(self._replica(replace(sample_schema(), table=WEIRD)))
        self.destination.claim("shop", 1)
        for replica in self.replicas:
            replica.apply(replica.wire().update((b"11", b"eleven", None)).delete((b"31", None, None)).take())
            replica.apply(replica.wire().insert(ANN).update((b"21", b"to 41", None)).take())

    def _replica(self, schema: TableSchema) -> Replica:
        replica = Replica(self.destination, schema, pipeline="shop")
        self.destination.begin_copy(replica.target, 1)
        for number in range(1, 5):
            replica.stage(1, number, [(b"%d1" % number, b"x", None), (b"%d2" % number, b"y", None)])
        self.destination.finish_copy(replica.target, 1, Boundary(10))
        return replica

    def job(self, **spark: Any) -> MergeJob:
        destination = DestinationSpec("delta", str(self.folder), OPTIONS)
        return MergeJob(
            PipelineSpec("shop", (TableSpec("*.*"),), SourceSpec("env:NOWHERE"), destination, spark=SparkSpec(**spark))
        )

    def rows(self, replica: Replica) -> dict[int, str]:
        place = self.folder / safe(replica.schema.table.schema) / safe(replica.schema.table.name)
        return {row[0]: row[1] for row in rows_of(place)}

    def assert_merged(self) -> None:
        expected = {1: "Ann", 11: "eleven", 12: "y", 21: "to 41", 22: "y", 32: "y", 41: "x", 42: "y"}
        assert [self.rows(replica) for replica in self.replicas] == [expected] * len(self.replicas)


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGETL_TEST_LAKE_SECRET", SECRET)


def test_every_table_that_something_has_landed_for_is_merged(tmp_path: Path) -> None:
    lake, reports = Lake(tmp_path, 3), list[Report]()
    result = merge_landed(lake.job(), InThreads(), reports.append, threading.Event())
    assert (result.merged, result.exit_code) == ({one.schema.table: 2 for one in lake.replicas}, 0)
    notes = [report for report in reports if isinstance(report, Noted)]
    assert [note.table for note in notes] == sorted(result.merged)
    assert [note.message.partition(": ")[0] for note in notes] == [written(table) for table in sorted(result.merged)]
    lake.assert_merged()
    assert merge_landed(lake.job(), InThreads(), nobody, threading.Event()) == MergeResult()


def test_a_table_that_cannot_be_merged_does_not_keep_the_others_from_it(tmp_path: Path) -> None:
    lake, calls = Lake(tmp_path, 3), 0

    def failing_once(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        nonlocal calls
        calls += 1
        answers: list[Any] = InThreads()(function, items)
        return [PgetlError(ErrorKind.VALUE, "no such value"), *answers[1:]] if calls == 2 else answers

    result = merge_landed(lake.job(), failing_once, nobody, threading.Event())
    (broken,) = result.failed
    assert result.exit_code == 4
    assert broken not in result.merged
    assert len(result.merged) == 2
    assert MergeResult.from_json(json.loads(json.dumps(result.as_json()))) == result
    with pytest.raises(PgetlError, match="no such value"):
        result.expect_whole()
    assert merge_landed(lake.job(), InThreads(), nobody, threading.Event()).merged == {broken: 2}
    lake.assert_merged()


def test_what_a_merge_that_died_has_left_goes_with_the_next_pass(tmp_path: Path) -> None:
    lake = Lake(tmp_path, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Landing, "clear", lambda _: None)
        assert len(merge_landed(lake.job(), InThreads(), nobody, threading.Event()).merged) == 2
    quiet, busy = lake.replicas
    busy.apply(busy.wire().insert((b"99", None, None)).take())
    result = merge_landed(lake.job(), InThreads(), nobody, threading.Event())
    assert result == MergeResult({busy.schema.table: 1})
    assert quiet.schema.table not in result.merged
    assert [path for path in tmp_path.glob("_pgetl/shop.landing/*/*/[0-9]*/*") if path.is_file()] == []


def test_trouble_of_the_lake_ends_the_pass(tmp_path: Path) -> None:
    lake = Lake(tmp_path, 2)

    def away(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        raise PgetlError(ErrorKind.CONNECTION, f"the store is away for {function} and {len(items)} others")

    result = merge_landed(lake.job(), away, nobody, threading.Event())
    assert (result.merged, result.failed, result.exit_code) == ({}, {}, 1)
    assert lake.rows(lake.replicas[0])[11] == "x"


def test_a_defect_of_a_task_comes_back_as_an_error() -> None:
    (answer,) = InThreads()(lambda item: 1 // item, [0])
    assert isinstance(answer, PgetlError)
    assert answer.kind is ErrorKind.INTERNAL
    assert "ZeroDivisionError" in answer.message


@pytest.mark.spark
def test_a_merge_by_spark_submit(tmp_path: Path) -> None:
    lake, seen = Lake(tmp_path / "lake", 2), list[str]()

    def look(_: Report) -> None:
        leader = psutil.Process(running.pid)
        for process in (leader, *leader.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                seen.append(" ".join(process.cmdline()))

    job = lake.job(master="local[2]")
    running = submit(MERGE, job, look)
    result = running.wait(120)
    assert result == MergeResult({one.schema.table: 2 for one in lake.replicas}), result
    lake.assert_merged()
    assert any("merge_changes.py" in line for line in seen)
    assert not any(SECRET in line for line in seen)
    assert SECRET not in json.dumps(job.as_json())


@pytest.mark.slow
@pytest.mark.spark
def test_executors_elsewhere_are_told_where_the_lake_is(tmp_path: Path) -> None:
    """They do not know what the references stand for."""
    lake = Lake(tmp_path / "lake", 1)
    more = "--executor-memory 512m --conf spark.driver.host=127.0.0.1 --conf spark.executorEnv.PGETL_TEST_LAKE_SECRET="
    result = submit(MERGE, lake.job(master="local-cluster[2,1,1024]", submit=more)).wait(150)
    assert result == MergeResult({one.schema.table: 2 for one in lake.replicas}), result
    lake.assert_merged()
