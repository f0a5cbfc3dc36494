"""Copy the tables of one job: the Spark application behind `pgetl run`, `pgetl copy` and the Airflow tasks.

    spark-submit … copy_table.py JOB_FILE [--lifeline FIFO]

JOB_FILE holds a `CopyJob` as JSON: the declaration and the tables, with references to connections, never secrets.
Reports go to standard output as lines of JSON; the last one tells how it ended. The exit code: 0 done, 4 some tables
failed, else the code of what ended it (2 configuration, 1 anything else).

It stops, and takes away what it staged, on SIGTERM, when the life line closes (whoever submitted it is gone), and when
the Java machine that runs it is gone. It does not outlive any of these by more than `_LAST_SECONDS`.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext

from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.reports import Report
from airflow_provider_pgetl.engine.reports_as_lines import to_line
from airflow_provider_pgetl.engine.secrets import resolve
from airflow_provider_pgetl.engine.state.opening import open_store
from airflow_provider_pgetl.engine.sync.copying.driver import copy_group
from airflow_provider_pgetl.engine.sync.copying.job import CopyJob
from airflow_provider_pgetl.engine.sync.copying.outcome import CopyResult, Failure
from airflow_provider_pgetl.engine.sync.copying.runners import RangeRunner
from airflow_provider_pgetl.engine.sync.copying.spark import SparkRunner
from airflow_provider_pgetl.engine.sync.submitting import PACKAGE, REMOTE_VARIABLE, RESULT_EVENT

_LAST_SECONDS = 10.0
_output = threading.Lock()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="copy_table.py", description="Copy the tables of one job.")
    parser.add_argument("job", type=Path, metavar="JOB_FILE")
    parser.add_argument("--lifeline", type=Path, metavar="FIFO", help="stop when nobody holds it open any more")
    given = parser.parse_args(arguments)
    stop = _stop_when_alone(given.lifeline)
    result = _run(given.job, stop)
    _say(json.dumps({"event": RESULT_EVENT, "result": result.as_json()}))
    if given.lifeline is not None:
        _clear_away(given.job, given.lifeline)
    return result.exit_code


def _run(job_file: Path, stop: threading.Event) -> CopyResult:
    try:
        job = CopyJob.from_json(json.loads(job_file.read_text(encoding="utf-8")))
        store = open_store(resolve(job.spec.state), job.spec.id, in_source=job.spec.state_uri is None)
        try:
            with _runner(job_file.parent) as runner:
                return copy_group(job, store, runner, _report, stop)
        finally:
            store.close()
    except PgetlError as error:
        return CopyResult(0, failure=Failure.of(error))


def _clear_away(job_file: Path, lifeline: Path) -> None:
    """Whoever packed these may be no more. The folder goes if nothing else is in it."""
    for file in (job_file, lifeline):
        if file.parent == lifeline.parent:
            file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        lifeline.parent.rmdir()


@contextmanager
def _runner(folder: Path) -> Iterator[RangeRunner]:
    """Of the Spark that submitted this, or of the Spark Connect server that the environment names."""
    remote = os.environ.get(REMOTE_VARIABLE)
    if remote is None:
        with SparkContext() as context:
            yield SparkRunner(context)
        return
    from airflow_provider_pgetl.engine.sync.copying.spark_connect import connected

    with connected(remote, folder / PACKAGE) as runner:
        yield runner


def _report(report: Report) -> None:
    _say(to_line(report))


def _say(line: str) -> None:
    with _output:
        print(line, flush=True)


# -- when to stop -----------------------------------------------------------------------------------------------------


def _stop_when_alone(lifeline: Path | None) -> threading.Event:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: _leave(stop))
    # Under spark-submit standard input is a pipe from the Java machine, to which nothing is ever written.
    if stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        _watch(sys.stdin.fileno(), stop)
    if lifeline is not None:
        _watch(_open_lifeline(lifeline), stop)
    return stop


def _open_lifeline(lifeline: Path) -> int:
    """Opened so that a parent that is gone already is an end of file, not a wait for ever."""
    try:
        opened = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        sys.exit(f"The life line {lifeline} is gone, and with it whoever wanted this copy.")
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
    """Ask for the end, and make sure of it."""
    stop.set()
    last = threading.Timer(_LAST_SECONDS, os._exit, [1])
    last.daemon = True
    last.start()


if __name__ == "__main__":
    sys.exit(main())
