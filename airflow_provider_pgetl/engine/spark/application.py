"""The common part of the programs in `spark_apps`: arguments, executors, life line, reports and the result.

    spark-submit … <program>.py JOB_FILE [--lifeline FIFO] [--secrets FILE]

JOB_FILE contains the job as JSON: the specification, with references to connections, never secrets. The values of the
references are in the environment or, for a driver that does not have them there, in the file given by ``--secrets``.
Reports are written to standard output as lines of JSON; the last line is the result. Exit codes: 0 done, 4 some tables
failed, otherwise the code of the error that ended the application (2 configuration, 1 anything else).

An application is asked to stop by SIGTERM, by the end of the life line (the process that submitted it has ended), and
by the end of the Java machine that runs it. It exits within `_LAST_SECONDS` after any of these.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import stat
import sys
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from airflow_provider_pgetl.engine.copy.ranges import Endpoints, RangeOutcome, RangeTask
from airflow_provider_pgetl.engine.copy.runners import Bundle, Outcomes, Wanted, bundled, run_in_threads
from airflow_provider_pgetl.engine.destinations.protocol import Answer, Item
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.reports import Report, to_line
from airflow_provider_pgetl.engine.spark.submission import PACKAGE, REMOTE_VARIABLE, Application

_LAST_SECONDS = 10.0
_output = threading.Lock()


class ApplicationResult(Protocol):
    """A result that can be written as JSON."""

    @property
    def exit_code(self) -> int: ...

    def as_json(self) -> dict[str, Any]: ...


Result = TypeVar("Result", bound=ApplicationResult)


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of an application. `remote` is the Spark Connect server to use; None for the Spark that submitted
    the application. `package` is an archive of our own code, for executors on other machines."""

    job: Mapping[str, Any]
    package: Path
    remote: str | None
    stop: threading.Event

    def report(self, report: Report) -> None:
        _say(to_line(report))


def run_application(
    application: Application[Result], work: Callable[[Call], Result], arguments: Sequence[str] | None = None
) -> int:
    """Runs `work` and writes its result; returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"{application.program}.py", description=work.__doc__)
    parser.add_argument("job", type=Path, metavar="JOB_FILE")
    parser.add_argument("--lifeline", type=Path, metavar="FIFO", help="stop when no process holds it open any more")
    parser.add_argument("--secrets", type=Path, metavar="FILE", help="further variables of the environment")
    given = parser.parse_args(arguments)
    if given.secrets is not None:
        os.environ.update(json.loads(given.secrets.read_text(encoding="utf-8")))
    stop = _stop_when_alone(given.lifeline)
    job = json.loads(given.job.read_text(encoding="utf-8"))
    result = work(Call(job, given.job.parent / PACKAGE, os.environ.get(REMOTE_VARIABLE), stop))
    _say(json.dumps({"event": application.result_event, "result": result.as_json()}))
    if given.lifeline is not None:
        _clear_away(given.job, given.lifeline)
    return result.exit_code


def _clear_away(job_file: Path, lifeline: Path) -> None:
    """Deletes the job file and the life line, because the process that created them may have ended. The folder is
    deleted if nothing else is in it."""
    for file in (job_file, lifeline):
        if file.parent == lifeline.parent:
            file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        lifeline.parent.rmdir()


def _say(line: str) -> None:
    with _output:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


class Executors(ABC):
    """Runs ranges of a copy (a `RangeRunner`) and tasks of a merge (a `Spread`).

    Each bundle of ranges is a job of its own, several at a time, rather than one job for all: an outcome is available
    as soon as its ranges are done, so that tables are published early; the order is kept; and a table that has failed
    causes no further cost. All jobs of a copy have a tag, by which they are cancelled.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once

    def run(self, endpoints: Endpoints, tasks: Sequence[RangeTask], wanted: Wanted) -> Outcomes:
        shipped, tag = self._shipped(endpoints), f"pgetl-{uuid.uuid4().hex}"
        return run_in_threads(
            lambda bundle: self._run_bundle(shipped, bundle, tag),
            bundled(tasks, self._at_once),
            wanted,
            self._at_once,
            lambda: self._cancel(tag),
        )

    @abstractmethod
    def __call__(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer | PgetlError]: ...

    def _shipped(self, endpoints: Endpoints) -> Endpoints:
        """Returns the endpoints in the form in which the executors get them."""
        return endpoints.resolved()

    @abstractmethod
    def _run_bundle(self, endpoints: Endpoints, bundle: Bundle, tag: str) -> list[RangeOutcome]: ...

    @abstractmethod
    def _cancel(self, tag: str) -> None: ...


@contextlib.contextmanager
def executors_of(call: Call) -> Iterator[Executors]:
    """Yields the executors of the Spark that submitted this program, or of the Spark Connect server that the call
    names."""
    if call.remote is None:
        from pyspark import SparkContext

        from airflow_provider_pgetl.engine.spark.executors import SparkExecutors

        with SparkContext() as context:
            yield SparkExecutors(context)
        return
    # This needs only the client of pyspark, which has neither a SparkContext nor py4j.
    from airflow_provider_pgetl.engine.spark.connect import ConnectExecutors, connected

    with connected(call.remote, call.package) as session:
        yield ConnectExecutors(session)


# -- stopping ----------------------------------------------------------------------------------------------------------


def _stop_when_alone(lifeline: Path | None) -> threading.Event:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: _leave(stop))
    # Under spark-submit, standard input is a pipe from the Java machine, to which nothing is ever written.
    if stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        _watch(sys.stdin.fileno(), stop)
    if lifeline is not None:
        _watch(_open_lifeline(lifeline), stop)
    return stop


def _open_lifeline(lifeline: Path) -> int:
    """Opens the life line without blocking, so that a parent that has already ended is seen as an end of file and not
    waited for."""
    try:
        opened = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        sys.exit(f"The life line {lifeline} does not exist any more: the process that submitted this has ended.")
    os.set_blocking(opened, True)
    return opened


def _watch(descriptor: int, stop: threading.Event) -> None:
    threading.Thread(target=_until_closed, args=(descriptor, stop), name="pgetl life line", daemon=True).start()


def _until_closed(descriptor: int, stop: threading.Event) -> None:
    while True:
        select.select([descriptor], [], [])
        if not os.read(descriptor, 4096):
            _leave(stop)
            return


def _leave(stop: threading.Event) -> None:
    """Requests the stop, and ends the process after `_LAST_SECONDS` if it is still running."""
    stop.set()
    last = threading.Timer(_LAST_SECONDS, os._exit, [1])
    last.daemon = True
    last.start()
