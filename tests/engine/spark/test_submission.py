"""The command that runs an application on Spark, and the process that it becomes. No Spark is started here."""

import sys
import threading
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from airflow_provider_pgetl.engine.config.spec import SparkSpec
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.reports import Noted, Report
from airflow_provider_pgetl.engine.spark import submission
from airflow_provider_pgetl.engine.spark.submission import COPY, MERGE, CopyProcess, SparkProcess, submit_command


def setting(command: Sequence[str], name: str) -> list[str]:
    return [word.partition("=")[2] for word in command if word.startswith(f"{name}=")]


def test_a_local_master_is_small_and_quiet_and_stays_on_this_machine() -> None:
    command = submit_command(SparkSpec("local[2]"), COPY.path, "pgetl shop copy")

    assert command[0].endswith("pyspark/bin/spark-submit")
    assert command[command.index("--master") + 1] == "local[2]"
    assert command[-1].endswith("spark_apps/copy_table.py")
    assert setting(command, "spark.ui.enabled") == ["false"]
    assert setting(command, "spark.speculation") == ["false"]
    assert setting(command, "spark.driver.bindAddress") == ["127.0.0.1"]
    assert "--py-files" not in command


def test_another_master_decides_for_itself_and_is_sent_our_code() -> None:
    command = submit_command(SparkSpec("spark://m:7077"), COPY.path, "pgetl shop copy", [Path("/tmp/ours.zip")])

    assert command[command.index("--py-files") + 1] == "/tmp/ours.zip"
    assert setting(command, "spark.driver.memory") == []
    assert setting(command, "spark.speculation") == ["false"]


def test_what_a_person_adds_comes_last_and_so_wins() -> None:
    command = submit_command(SparkSpec("local", submit="--conf 'spark.driver.memory=2g' --queue 'a b'"), COPY.path, "n")

    assert setting(command, "spark.driver.memory") == ["512m", "2g"]
    assert command[-3:-1] == ["--queue", "a b"]


@pytest.fixture
def client_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pyspark as the client of Spark Connect brings it, and no Spark on the path."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_without_a_spark_the_extra_is_named(client_only: None) -> None:
    with pytest.raises(PgetlError, match="no Spark on this machine") as raised:
        submission.spark_submit()
    assert "airflow-provider-pgetl[spark]" in raised.value.remedy


def test_a_spark_of_its_own_is_found_on_the_path(client_only: None, tmp_path: Path) -> None:
    program = tmp_path / "spark-submit"
    program.touch(0o700)
    assert submission.spark_submit() == program


def test_our_code_as_a_package(tmp_path: Path) -> None:
    with zipfile.ZipFile(submission._package(tmp_path)) as archive:
        names = archive.namelist()

    assert "airflow_provider_pgetl/engine/copy/ranges.py" in names
    assert all(name.endswith(".py") for name in names)


# -- the process ------------------------------------------------------------------------------------------------------


def process(tmp_path: Path, program: str, reports: list[Report] | None = None) -> CopyProcess:
    """A stand-in for the application: it is given the life line, as the real one is."""
    folder = tmp_path / "folder"
    folder.mkdir()
    lifeline = folder / "lifeline"
    submission.os.mkfifo(lifeline)
    observer = (reports if reports is not None else []).append
    return SparkProcess(COPY, [sys.executable, "-c", program, str(lifeline)], folder, observer, {})


RESULT = (
    '{"event": "copy_ended", "result": {"attempt": 3, "published": [], "failed": [], "left_out": [],'
    ' "boundary": null, "slot": null, "failure": null}}'
)


def test_reports_are_relayed_and_the_result_is_the_last_word(tmp_path: Path) -> None:
    reports: list[Report] = []
    noted = '{"event": "noted", "level": "info", "message": "hello"}'
    result = process(tmp_path, f"print('WARN noise'); print({noted!r}); print({RESULT!r})", reports).wait()

    assert reports == [Noted("info", "hello")]
    assert result is not None
    assert (result.attempt, result.failure) == (3, None)
    assert not (tmp_path / "folder").exists()


def test_one_that_ends_without_a_word_has_died(tmp_path: Path) -> None:
    result = process(tmp_path, "import sys; sys.exit('java is not here')").wait()

    assert result is not None
    assert result.failure is not None
    assert result.failure.kind is ErrorKind.COPY_DIED
    assert "exit code 1 and said last:\njava is not here" in result.failure.message


def test_a_merge_that_ends_without_a_word_says_that_nothing_is_lost() -> None:
    result = MERGE.wordless("It was killed.")

    assert result.exit_code == 1
    with pytest.raises(PgetlError, match="what has landed is safe"):
        result.expect_whole()


def test_it_is_asked_to_stop_by_the_life_line(tmp_path: Path) -> None:
    reports: list[Report] = []
    holding = '{"event": "noted", "level": "info", "message": "holding"}'
    read = f"import sys; line = open(sys.argv[1]); print({holding!r}); assert line.read() == ''; print({RESULT!r})"
    running = process(tmp_path, read, reports)
    while not reports:
        assert running.wait(0.01) is None

    assert running.stop(grace=60).attempt == 3


def test_if_it_does_not_stop_it_is_killed_with_all_its_children(tmp_path: Path) -> None:
    children = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    running = process(tmp_path, f"{children}; time.sleep(60)")
    family = psutil.Process(running.pid)
    while not family.children():
        time.sleep(0.01)
    (child,) = family.children()

    result = running.stop(grace=0.2)

    assert result.failure is not None
    assert "killed by signal 9" in result.failure.message
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_several_may_wait_and_stop(tmp_path: Path) -> None:
    running = process(tmp_path, f"import time; time.sleep(0.3); print({RESULT!r})")
    results: list[object] = []
    waiters = [threading.Thread(target=lambda: results.append(running.wait())) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        waiter.join()

    assert len(results) == 3
    assert running.stop().attempt == 3


def test_no_spark_no_copy(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    submission.os.mkfifo(folder / "lifeline")

    with pytest.raises(PgetlError, match="cannot be started"):
        SparkProcess(COPY, [str(tmp_path / "not there")], folder, lambda _: None, {})
    assert not folder.exists()
