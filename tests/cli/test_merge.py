"""`pgetl merge`: what it says, and its exit codes. It needs neither source nor state; no Spark is started here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from airflow_provider_pgetl.cli.app import app
from airflow_provider_pgetl.engine.config.jobs import MergeJob, MergeResult
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.model.errors import ErrorData, ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.reports import nobody
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.engine.spark.submission import MERGE
from airflow_provider_pgetl.testing.builders import Line, Replica
from tests.engine.destinations.delta.reading import rows_of
from tests.local_merge import LocalMerge

ANN: Line = (b"1", b"Ann", None)
BOB: Line = (b"2", b"Bob", None)
FILE = 'id = "shop"\ntables = ["*.*"]\n[source]\nuri = "env:NOWHERE"\n[destination]\n'


class Ended:
    """A merge that has ended; `first` is done before it says how."""

    def __init__(self, result: MergeResult, first: Callable[[], Any] = lambda: None) -> None:
        self._result = result
        self._first = first

    def wait(self, timeout: float | None = None) -> MergeResult:
        assert timeout is not None, "somebody may want to stop"
        self._first()
        return self._result

    def stop(self, grace: float) -> MergeResult:
        assert grace > 0
        return self._result


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.toml"
    path.write_text(f'{FILE}type = "delta"\nuri = "{tmp_path}/lake"\nmerge = "spark"\n')
    return path


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    """Something has landed for it."""
    replica = Replica(DeltaDestination(f"{tmp_path}/lake", "shop", {"merge": "spark"}), pipeline="shop").create(ANN)
    replica.apply(replica.wire().insert(BOB).take())
    return replica


def merge(file: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments, "merge", str(file)])


def launched(monkeypatch: pytest.MonkeyPatch, running: Callable[[MergeJob], Any]) -> None:
    monkeypatch.setattr(Pipeline, "_launch_merge", lambda _: running)


def seen(tmp_path: Path, replica: Replica) -> list[int]:
    place = tmp_path / "lake" / replica.schema.table.schema / replica.schema.table.name
    return sorted(row[0] for row in rows_of(place))


def test_what_has_landed_is_merged(
    tmp_path: Path, file: Path, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, lambda job: LocalMerge(job, nobody))
    done = merge(file, "--log-format", "json")
    assert done.exit_code == 0
    ended = json.loads(done.stdout.splitlines()[-1])
    table = replica.schema.table
    assert ended["merged"] == [{"of": {"schema": table.schema, "name": table.name}, "batches": 1}]
    assert seen(tmp_path, replica) == [1, 2]


def test_where_nothing_has_landed_no_spark_is_started(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, lambda job: pytest.fail(f"{job} was started"))
    done = merge(file)
    assert (done.exit_code, done.stdout) == (0, "Done.\n")


@pytest.mark.parametrize("destination", ['type = "memory"', 'type = "delta"\nuri = "/lake"'])
def test_a_pipeline_whose_worker_merges_has_nothing_to_merge(file: Path, destination: str) -> None:
    file.write_text(FILE + destination)
    done = merge(file)
    assert done.exit_code == 2
    assert 'Set merge = "spark" in [destination]' in done.stderr


def test_a_table_that_cannot_be_merged_is_told(file: Path, replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ErrorData.of(PgetlError(ErrorKind.VALUE, "No such value."))
    launched(monkeypatch, lambda _: Ended(MergeResult({}, {replica.schema.table: broken})))
    done = merge(file)
    assert done.exit_code == 4
    assert f"{replica.schema.table} could not be merged: No such value." in done.stderr
    assert done.stdout == "Done, but for the tables that could not be merged.\n"


@pytest.mark.usefixtures("replica")
def test_a_merge_that_died_has_failed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, lambda _: Ended(MERGE.wordless("It was killed.")))
    done = merge(file)
    assert done.exit_code == 1
    assert "It was killed. Merge again: what has landed is safe" in done.stderr


def test_a_merge_that_died_when_its_work_was_done_has_not(
    file: Path, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose driver is elsewhere, and cannot tell. What has landed since is the next merge's."""

    def work() -> None:
        LocalMerge(job, nobody).wait()
        replica.apply(replica.wire().delete(ANN).take())

    def launch(given: MergeJob) -> Ended:
        nonlocal job
        job = given
        return Ended(MERGE.wordless("It ended with exit code 0."), work)

    job: Any = None
    launched(monkeypatch, launch)
    assert merge(file).exit_code == 0
