"""Runs a Spark application, a copy or a merge, in a process of its own.

`submit` starts ``spark-submit … spark_apps/<program>.py`` and returns a `SparkProcess`, which relays the application's
reports and ends it.

How the two processes communicate
* The job (a specification, perhaps names of tables, no secrets) is in a private file, which is named in the arguments.
  `pack` creates it, also for callers that build the command themselves, as the Airflow provider does from a Spark
  connection.
* The life line is a named pipe that only the parent holds open. When it closes, because the parent wants the
  application to end or has itself ended in whatever way, the application stops, removes what is half done, and exits.
  (Standard input cannot be used: the Java machine is in between and does not pass its end on.)
* Reports are lines of JSON on standard output. Of other output there, and of standard error, only the last lines are
  kept, for the case that the application fails without a result.
* The application and its Java machine are a session of their own, which is killed if it does not end within its grace
  period.

References such as ``env:NAME`` are resolved by the application, which inherits this environment. Arguments and Spark's
configuration contain no secrets.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from zipfile import ZIP_DEFLATED, ZipFile

from airflow_provider_pgetl.engine.config.jobs import CopyResult, MergeResult
from airflow_provider_pgetl.engine.config.spec import PipelineSpec, SparkSpec
from airflow_provider_pgetl.engine.model.errors import ErrorData, ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.reports import Observer, from_line, nobody
from airflow_provider_pgetl.engine.runtime.processes import private_folder

# -- The Spark applications: their programs and how their results are read. --------------------------------------------

# In the repository, this package is the folder `spark_apps` at the top level.
_PROGRAMS = "airflow_provider_pgetl.spark_apps"

Result = TypeVar("Result")


class Job(Protocol):
    """The input of an application. It contains no secrets."""

    @property
    def spec(self) -> PipelineSpec: ...

    def as_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Application(Generic[Result]):
    """A program of `spark_apps`. If it ends without a result, `died` returns the error, and `failed` returns a result
    with that error."""

    name: str
    program: str
    read: Callable[[Mapping[str, Any]], Result]
    died: Callable[[str], PgetlError]
    failed: Callable[[PgetlError], Result]

    @property
    def result_event(self) -> str:
        """The name of the event that contains the result."""
        return f"{self.name}_ended"

    @property
    def path(self) -> Path:
        found = find_spec(f"{_PROGRAMS}.{self.program}")
        if found is None or found.origin is None:
            raise PgetlError(ErrorKind.INTERNAL, f"{_PROGRAMS}.{self.program} is not installed.")
        return Path(found.origin)

    def wordless(self, how: str) -> Result:
        return self.failed(self.died(how))

    def title(self, job: Job) -> str:
        """Returns the application name that Spark shows."""
        return f"pgetl {job.spec.id} {self.name}"


def _copy_died(how: str) -> PgetlError:
    return PgetlError(ErrorKind.COPY_DIED, how)


def _copy_failed(error: PgetlError) -> CopyResult:
    return CopyResult(0, failure=ErrorData.of(error))


def _merge_died(how: str) -> PgetlError:
    remedy = "Merge again: what has landed is safe, and what was merged stays."
    return PgetlError(ErrorKind.RESOURCES, how, remedy=remedy)


def _merge_failed(error: PgetlError) -> MergeResult:
    return MergeResult(failure=ErrorData.of(error))


COPY = Application("copy", "copy_table", CopyResult.from_json, _copy_died, _copy_failed)
MERGE = Application("merge", "merge_changes", MergeResult.from_json, _merge_died, _merge_failed)


# -- Submission. -------------------------------------------------------------------------------------------------------

REMOTE_VARIABLE = "PGETL_SPARK_REMOTE"
PACKAGE = "airflow_provider_pgetl.zip"
GRACE_SECONDS = 8.0
_JOB_FILE, _LIFELINE = "job.json", "lifeline"
_REMEMBERED_LINES = 40
_LAST_WORDS_SECONDS = 5.0
_INSTALL = "Install airflow-provider-pgetl[spark], and Java 17 or later."
_REFUSAL, _USAGE = "Error: ", "Usage: spark-submit"

_ALWAYS = {
    "spark.speculation": "false",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}
_LOCAL = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def is_local(master: str) -> bool:
    """Returns whether Spark runs in one process on this machine, where executors have the driver's environment."""
    return master == "local" or master.startswith("local[")


@dataclass(frozen=True, slots=True)
class Parcel:
    """The files of an application, in a private folder that is deleted with its process."""

    folder: Path
    packages: tuple[Path, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        return str(self.folder / _JOB_FILE), "--lifeline", str(self.folder / _LIFELINE)


def pack(job: Job, *, local: bool) -> Parcel:
    """Creates the files. `local`: executors find our code where the application finds it."""
    folder = private_folder("spark")
    (folder / _JOB_FILE).write_text(json.dumps(job.as_json()), encoding="utf-8")
    os.mkfifo(folder / _LIFELINE, 0o600)
    return Parcel(folder, () if local else (_package(folder),))


def submit(
    application: Application[Result],
    job: Job,
    observer: Observer = nobody,
    environment: Mapping[str, str] = os.environ,
) -> SparkProcess[Result]:
    """Starts the application. Raises only if it cannot be started at all."""
    parcel = pack(job, local=is_local(job.spec.spark.master))
    command = submit_command(job.spec.spark, application.path, application.title(job), parcel.packages)
    around = with_address(environment, job.spec.spark.master)
    return SparkProcess(application, [*command, *parcel.arguments], parcel.folder, observer, around)


def with_address(environment: Mapping[str, str], master: str) -> Mapping[str, str]:
    """Adds the local address: Spark need not look up this machine's name if all of it runs here. Executors on other
    machines need the name."""
    return {"SPARK_LOCAL_IP": "127.0.0.1", **environment} if is_local(master) else environment


def spark_settings(master: str) -> dict[str, str]:
    """Returns our settings; the user's settings come after them and so override them."""
    return {**_ALWAYS, **(_LOCAL if is_local(master) else {})}


def submit_command(spark: SparkSpec, program: Path, name: str, packages: Sequence[Path] = ()) -> list[str]:
    """Returns the command up to and including the program, without the program's arguments. The user's arguments come
    after ours and so override them."""
    command = [str(spark_submit()), "--master", spark.master, "--name", name]
    for key, value in spark_settings(spark.master).items():
        command += ["--conf", f"{key}={value}"]
    if packages:
        command += ["--py-files", ",".join(map(str, packages))]
    return [*command, *shlex.split(spark.submit), str(program)]


class SparkProcess(Generic[Result]):
    """A running Spark application. Several threads may wait for it and stop it."""

    def __init__(
        self,
        application: Application[Result],
        command: Sequence[str],
        folder: Path,
        observer: Observer,
        environment: Mapping[str, str],
    ) -> None:
        self._application = application
        self._folder = folder
        self._observer = observer
        self._result: Result | None = None
        self._cleanup_lock = threading.Lock()
        self._said: deque[str] = deque(maxlen=_REMEMBERED_LINES)
        self._refused: str | None = None
        # Opened for reading and writing, so that opening does not wait for the reader; children do not inherit it.
        self._lifeline: int | None = os.open(folder / _LIFELINE, os.O_RDWR | os.O_CLOEXEC)
        self._process = self._start(command, environment)
        self._relay = threading.Thread(target=self._read, name="pgetl Spark reports", daemon=True)
        self._relay.start()

    @property
    def pid(self) -> int:
        """The process id, which is the id of the process group as well."""
        return self._process.pid

    def wait(self, timeout: float | None = None) -> Result | None:
        """Returns the result; None if the application has not ended yet. An application that ended without a result
        counts as failed, with its last output."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._relay.join(_LAST_WORDS_SECONDS)
        self._clean_up()
        return self._result or self._wordless(code)

    def stop(self, grace: float = GRACE_SECONDS) -> Result:
        """Asks the application to end, and kills it if it has not ended after `grace` seconds."""
        self._cut_lifeline()
        result = self.wait(grace)
        if result is None:
            self.kill()
            result = self.wait()
        assert result is not None, "a process that was waited for without end has ended"
        return result

    def kill(self) -> None:
        """Kills the application and its Java machine."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**_python(environment), **environment, "PYTHONUNBUFFERED": "1"},
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            self._clean_up()
            message = f"spark-submit cannot be started: {error}."
            raise PgetlError(ErrorKind.CONFIG, message, remedy=_INSTALL) from error

    def _read(self) -> None:
        assert self._process.stdout is not None, "the output is a pipe"
        for line in self._process.stdout:
            report = from_line(line)
            if report is not None:
                self._observer(report)
            elif not self._take_result(line):
                self._remember(line.rstrip())

    def _take_result(self, line: str) -> bool:
        if f'"{self._application.result_event}"' not in line:
            return False
        self._result = self._application.read(json.loads(line)["result"])
        return True

    def _remember(self, line: str) -> None:
        """Keeps a line of output. spark-submit writes why it refuses its arguments before its usage, which is longer
        than what is kept."""
        if line.startswith(_USAGE) and self._refused is None:
            errors = (one.removeprefix(_REFUSAL) for one in self._said if one.startswith(_REFUSAL))
            self._refused = next(errors, None)
        self._said.append(line)

    def _wordless(self, code: int) -> Result:
        if self._refused is None:
            return self._application.wordless(self._last_words(code))
        complaint = f"spark-submit refuses its arguments: {self._refused.rstrip('.')}."
        remedy = "Correct the arguments of spark-submit that you have declared."
        return self._application.failed(PgetlError(ErrorKind.CONFIG, complaint, remedy=remedy))

    def _last_words(self, code: int) -> str:
        said = "\n".join(self._said)
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        words = f"The {self._application.name}'s Spark application {ended}"
        return words + (f" and said last:\n{said}\n" if said else ".")

    def _cut_lifeline(self) -> None:
        with self._cleanup_lock:
            if self._lifeline is not None:
                os.close(self._lifeline)
                self._lifeline = None

    def _clean_up(self) -> None:
        self._cut_lifeline()
        with self._cleanup_lock:
            if self._folder.exists():
                shutil.rmtree(self._folder)


CopyProcess: TypeAlias = SparkProcess[CopyResult]


def _python(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the environment with which Spark's Python processes find the interpreter and the packages of this
    process."""
    paths = [str(Path(__file__).parents[3]), environment.get("PYTHONPATH", "")]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def spark_submit() -> Path:
    """Returns the spark-submit of the installed pyspark; otherwise the one on the path, which belongs to a separate
    Spark.

    A pyspark that is only the client of Spark Connect has no spark-submit.
    """
    found = find_spec("pyspark")
    for place in (found and found.submodule_search_locations) or ():
        program = Path(place) / "bin" / "spark-submit"
        if program.exists():
            return program
    elsewhere = shutil.which("spark-submit")
    if elsewhere is None:
        message = "There is no Spark on this machine: no pyspark with a spark-submit, and none on the path."
        raise PgetlError(ErrorKind.CONFIG, message, remedy=_INSTALL)
    return Path(elsewhere)


def _package(folder: Path) -> Path:
    """Writes an archive of our own code, for executors on other machines. What it imports must be installed there:
    psycopg, pyarrow, numpy."""
    root = Path(__file__).parents[2]
    package = folder / PACKAGE
    with ZipFile(package, "w", ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*.py")):
            archive.write(file, file.relative_to(root.parent))
    return package
