"""The command line with its copies and merges in threads of the process itself: a killed process is then the whole
pipeline, and no time goes into starting Java machines.

    python -m tests.without_spark run FILE …
"""

from __future__ import annotations

from airflow_provider_pgetl.cli import main
from airflow_provider_pgetl.engine.copy.admission import Launch
from airflow_provider_pgetl.engine.copy.attempt import LocalCopy
from airflow_provider_pgetl.engine.merging import LaunchMerge
from airflow_provider_pgetl.engine.pipeline import Pipeline
from tests.local_merge import LocalMerge


class LocalPipeline(Pipeline):
    """A pipeline that copies and merges in this process, whatever the destination."""

    def _launch(self) -> Launch:
        return lambda job: LocalCopy(job, self.store, self._observer)

    def _launch_merge(self) -> LaunchMerge:
        return lambda job: LocalMerge(job, self._observer)


def run_here() -> None:
    """From here on, in this process."""
    Pipeline._launch = LocalPipeline._launch  # type: ignore[method-assign, assignment]  # the seams there are
    Pipeline._launch_merge = LocalPipeline._launch_merge  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    run_here()
    main()
