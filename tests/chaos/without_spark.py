"""`pgetl run` with its copies in threads of the process itself: a killed process is then the whole pipeline, and no
time goes into starting Java machines.

    python -m tests.chaos.without_spark FILE [--until caught-up]
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from pathlib import Path

from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.engine.pipeline_file import read_pipeline_file
from airflow_provider_pgetl.engine.reports import CopyProgressed, Report, StreamProgressed
from airflow_provider_pgetl.engine.sync.copies import Launch
from airflow_provider_pgetl.engine.sync.copying.local import LocalCopy

log = logging.getLogger("run")

_TABLE_ERRORED = 4


class LocalPipeline(Pipeline):
    """A pipeline that copies in this process, whatever the destination."""

    def _launch(self) -> Launch:
        return lambda job: LocalCopy(job, self.store, self._observer)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--until", choices=["caught-up"])
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(name)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        pipeline = LocalPipeline(read_pipeline_file(given.file).spec, _say)
        outcome = pipeline.run(until_caught_up=given.until is not None, stop=stop)
    except PgetlError as error:
        log.exception("It ended with an error")
        return error.directive.exit_code
    return _TABLE_ERRORED if outcome.errored else 0


def _say(report: Report) -> None:
    if not isinstance(report, StreamProgressed | CopyProgressed):
        log.info("%s", report)


if __name__ == "__main__":
    sys.exit(main())
