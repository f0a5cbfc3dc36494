"""`PgetlHook`: a source of replications, and the pipelines that are declared on it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider_pgetl.connections import SOURCE, STATE, environment, value
from airflow_provider_pgetl.declarations import Replication, check_pipeline_id
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Finding, PgetlError, errors_of, findings_of
from airflow_provider_pgetl.engine.model.phases import phase_name
from airflow_provider_pgetl.engine.model.tables import written
from airflow_provider_pgetl.failures import failure
from airflow_provider_pgetl.running_airflow import deployment
from airflow_provider_pgetl.wording import in_airflow, told

if TYPE_CHECKING:
    import psycopg

    from airflow_provider_pgetl.engine.monitoring.sources import ServerFacts
    from airflow_provider_pgetl.engine.pipeline import Pipeline


class PgetlHook(BaseHook):
    """A source, by its connection, and a pipeline, by its declaration::

        PgetlHook("shop_db").test_connection()                      # (False, "The source has wal_level = replica, …")
        PgetlHook("shop_db").phases("shop")                         # {"public.orders": "Ready", …}
        PgetlHook(replication=shop.replication).check()             # the findings of a `CheckOperator`
        PgetlHook(replication=shop.replication).status()["slots"]   # what `pgetl status --json` answers

    The hook only reads; operators make changes. Its results are plain data, which a task may return. Connections are
    looked up, and servers queried, when a method is called. The ids of connections are used as given, and may not be
    templates.

    :param pgetl_conn_id: the Airflow connection of the source, of type pgetl or postgres; by default that of
        `replication`.
    :param replication: what a `ReplicationDag` or a `ReplicationTaskGroup` has as `replication`.
    """

    conn_name_attr = "pgetl_conn_id"
    default_conn_name = "pgetl_default"
    conn_type = "pgetl"
    hook_name = "Postgres, as a source of pgetl"

    def __init__(
        self, pgetl_conn_id: str | None = None, *, replication: Replication | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        declared = self.default_conn_name if replication is None else replication.connections.source
        self.pgetl_conn_id = pgetl_conn_id or declared
        self.replication = replication

    # -- the source ---------------------------------------------------------------------------------------------------

    def get_conn(self) -> psycopg.Connection[Any]:
        """Returns a session at the source, in autocommit, with the settings that all sessions of pgetl have. The caller
        must close it."""
        from airflow_provider_pgetl.engine.monitoring.sources import connect, worker_name

        with _raised_as_airflow():
            return connect(value(SOURCE, self.pgetl_conn_id), worker_name(self._pipeline_id, "hook"))

    def preflight(self) -> list[dict[str, str | None]]:
        """Returns what makes the source unfit for any pipeline: its version and settings, free slots and WAL senders,
        the role. A server that is out of reach is a finding, too. Tables are checked by `check`."""
        return [told(finding) for finding in self._look_at_server()[1]]

    def test_connection(self) -> tuple[bool, str]:
        """Returns whether changes can be streamed from the source, and one line that says what is wrong and the remedy.
        It is *Test connection* of Airflow."""
        facts, findings = self._look_at_server()
        if errors := errors_of(findings):
            return False, _in_one_line(errors)
        assert facts is not None, "a server that was not asked is an error"
        warnings = [finding for finding in findings if finding.severity == "warning"]
        return True, " ".join((_fit(facts), _in_one_line(warnings))).rstrip()

    def _look_at_server(self) -> tuple[ServerFacts | None, list[Finding]]:
        from airflow_provider_pgetl.engine.monitoring.sources import check_source

        try:
            return check_source(value(SOURCE, self.pgetl_conn_id))
        except PgetlError as error:
            return None, list(findings_of(error))

    # -- a pipeline ---------------------------------------------------------------------------------------------------

    def phases(self, pipeline: str | None = None) -> dict[str, str]:
        """Returns the phase of each table; empty if the pipeline has never run. Reads only the pipeline's state.

        :param pipeline: the id of a pipeline whose state is in this connection's database; by default that of
            `replication`, whose state has a connection of its own.
        """
        from airflow_provider_pgetl.engine.monitoring.snapshots import look

        conn_id = self.pgetl_conn_id
        if pipeline is None:
            replication = self._declared()
            pipeline, conn_id = replication.spec.id, replication.connections.state
        with _raised_as_airflow():
            check_pipeline_id(pipeline)
            picture = look(value(STATE, conn_id), pipeline)
        states = {} if picture is None else picture.states
        return {written(table): phase_name(states[table].phase) for table in sorted(states)}

    def status(self) -> dict[str, Any]:
        """Returns the phase and position of every table of `replication`, the worker that streams, and what each slot
        retains. It also answers while servers are out of reach; `unknown` then says what could not be read."""
        with _raised_as_airflow(), self._opened() as pipeline:
            return pipeline.status().as_json()

    def check(self) -> list[dict[str, str | None]]:
        """Returns everything that would prevent a run of `replication`, and what prevents the check itself."""
        try:
            with self._opened() as pipeline:
                findings = pipeline.check()
        except PgetlError as error:
            findings = list(findings_of(error))
        return [told(finding) for finding in findings]

    @contextmanager
    def _opened(self) -> Iterator[Pipeline]:
        from airflow_provider_pgetl.engine.pipeline import Pipeline

        replication = self._declared()
        values = {**os.environ, **environment(replication.connections)}
        with closing(Pipeline(replication.at(deployment()).spec, environment=values)) as pipeline:
            yield pipeline

    def _declared(self) -> Replication:
        if self.replication is None:
            remedy = "Write PgetlHook(replication=…), with the `replication` of a DAG or a group."
            raise failure(PgetlError(ErrorKind.USAGE, "It is not said which pipeline is meant.", remedy=remedy))
        return self.replication

    @property
    def _pipeline_id(self) -> str:
        return "any" if self.replication is None else self.replication.spec.id


@contextmanager
def _raised_as_airflow() -> Iterator[None]:
    try:
        yield
    except PgetlError as error:
        raise failure(error) from error


def _in_one_line(findings: Sequence[Finding]) -> str:
    return " ".join(in_airflow(f"{one.problem} {one.remedy}").replace("\n", " ") for one in findings)


def _fit(facts: ServerFacts) -> str:
    what = "a standby of " if facts.standby else ""
    return (
        f"Fit as a source: {what}PostgreSQL {facts.major}.{facts.minor}; {facts.role} may replicate; "
        f"{facts.max_slots - facts.used_slots} replication slots and {facts.max_walsenders - facts.used_walsenders} "
        "WAL senders are free."
    )
