"""Maintenance of a pipeline by a DAG of its own: checking, copying again, comparing, pausing, destroying.

These operators are used outside of a replication, and are given its declaration: what a `ReplicationDag` or a
`ReplicationTaskGroup` has as `replication`. They act in the name of the declaration's owner, so that a pipeline of
another owner is refused; of connections, as everywhere, they hold only the ids until they run. None of them has a
completion record: when one is cleared, or its DAG is run again, it does the same again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.xcom import BaseXCom

from airflow_provider_pgetl.engine.config import validation
from airflow_provider_pgetl.engine.config.spec import TableSpec
from airflow_provider_pgetl.engine.model.errors import (
    ErrorKind,
    Finding,
    FoundWanting,
    PgetlError,
    errors_of,
    findings_of,
)
from airflow_provider_pgetl.engine.model.tables import TableName, parse_table, written
from airflow_provider_pgetl.failures import failure
from airflow_provider_pgetl.operators.base import PipelineOperator
from airflow_provider_pgetl.wording import in_airflow, told

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.engine.model.verification import Verified


class CheckOperator(PipelineOperator):
    """Checks whether the pipeline could run, as `prepare` does, and looks for replication slots that are left over at
    the source. Changes no data.

    Fails where something prevents a run. The XCom is the list of all findings, also where the task fails:
    ``{"severity": "error" | "warning" | "note", "problem": …, "remedy": …, "table": … | None}``, each of which is also
    a line of the log. A server that is out of reach is a finding, and not waited for::

        CheckOperator(task_id="check", replication=shop.replication)

    :param replication: what a `ReplicationDag` or a `ReplicationTaskGroup` has as `replication`.
    """

    def execute(self, context: Context) -> list[dict[str, Any]]:
        findings = self._findings()
        for finding in findings:
            self._tell(finding)
        answer = [told(finding) for finding in findings]
        if errors := errors_of(findings):
            context["ti"].xcom_push(BaseXCom.XCOM_RETURN_KEY, answer)
            raise failure(FoundWanting(errors))
        return answer

    def _findings(self) -> list[Finding]:
        """Returns the findings, among them what prevents the check itself: a connection that Airflow does not have, a
        state that is out of reach."""
        try:
            with self.opened() as pipeline:
                return pipeline.check()
        except PgetlError as error:
            return list(findings_of(error))

    def _tell(self, finding: Finding) -> None:
        say = {"error": self.log.error, "warning": self.log.warning, "note": self.log.info}[finding.severity]
        say("%s %s", in_airflow(finding.problem), in_airflow(finding.remedy))


_FOR_INSTANCE = 'Write, for instance, ["public.orders"].'


class ResyncOperator(PipelineOperator):
    """Has whole tables copied again. Their data stays readable in the destination until the new copies are published.

    A replication that streams stops streaming these tables, and goes on with the others. No task of its run is left to
    copy them: a continuous run ends, and the next one copies; a run `until="caught_up"` fails, so use this operator
    while none is under way. Where no worker streams, the next run copies. The XCom is the list of the tables::

        ResyncOperator(task_id="resync", replication=shop.replication, tables=["{{ params.table }}"])

    :param replication: what a `ReplicationDag` or a `ReplicationTaskGroup` has as `replication`.
    :param tables: the names of tables, ``schema.table``, which may be templates; None for all that the pipeline has.
    """

    template_fields: Sequence[str] = (*PipelineOperator.template_fields, "tables")

    def __init__(self, *, tables: Sequence[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _check_names(tables)
        self.tables = tables

    def execute(self, context: Context) -> list[str]:
        del context
        with self.pipeline("execute") as pipeline:
            names = [written(table) for table in sorted(pipeline.reset_all(_chosen(self.tables)))]
            if self.tables is None and not names:
                message = f"Pipeline {self.pipeline_id} has no tables that could be copied again."
                raise PgetlError(ErrorKind.USAGE, message, remedy="It has none yet: `pgetl run` takes them up.")
        if names:
            self.log.info("Copied again by the next run: %s.", ", ".join(names))
        else:
            self.log.info("No table is named, so none is copied again.")
        return names


def _check_names(tables: object) -> None:
    """Checks `tables` as declared, before templates are rendered."""
    if isinstance(tables, str):
        validation.refuse("tables", "it must be a list, not text.", remedy=_FOR_INSTANCE)
    for one in tables if isinstance(tables, list | tuple) else ():
        if isinstance(one, TableSpec):
            validation.refuse("tables", "it must be names, not Table(…).", remedy=_FOR_INSTANCE)


def _chosen(tables: Sequence[str] | None) -> list[TableName] | None:
    """Returns the tables that rendered `tables` names; None for all."""
    if tables is None:
        return None
    if isinstance(tables, str) or not all(isinstance(name, str) for name in tables):
        message = f"`tables` has come to {tables!r}, which is no list of names."
        raise PgetlError(ErrorKind.CONFIG, message, remedy=_FOR_INSTANCE)
    return [parse_table(name) for name in tables]


class VerifyOperator(PipelineOperator):
    """Compares tables with the source, row by row, at one consistent point, while both are written to.

    Fails where rows differ, or where a table could not be compared, for instance because it is not Ready. The XCom,
    also where the task fails, is the result, without any value of a row: ``{"equal": …, "share": …, "tables":
    [{"table": …, "verdict": "equal" | "different" | "not compared", "position": …, "rows": …, "missing": …, "extra": …,
    "changed": …, …}], …}``. The log names the keys of rows that differ; ``pgetl verify airflow:DAG`` shows their
    values, too::

        VerifyOperator(task_id="verify", replication=shop.replication, sample=0.05)

    :param replication: what a `ReplicationDag` or a `ReplicationTaskGroup` has as `replication`.
    :param tables: the names of tables, ``schema.table``, which may be templates; None for all that the pipeline has.
    :param sample: the share of all keys that is compared, other keys each time.
    :param rate: how many rows a second are read at the source, at most; None for no limit.
    :param repair: whether tables that differ are copied again, by the next run.
    """

    template_fields: Sequence[str] = (*PipelineOperator.template_fields, "tables")

    def __init__(
        self,
        *,
        tables: Sequence[str] | None = None,
        sample: float = 1.0,
        rate: float | None = None,
        repair: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check_names(tables)
        if not 0 < sample <= 1:
            validation.refuse("sample", f"{sample} is no share of the rows.", remedy="Write, for instance, 0.05.")
        if rate is not None and rate <= 0:
            validation.refuse("rate", "it is a number of rows per second.", remedy="Write, for instance, 10000.")
        self.tables = tables
        self.sample = sample
        self.rate = rate
        self.repair = repair

    def execute(self, context: Context) -> dict[str, Any]:
        from airflow_provider_pgetl.engine.pipeline import VerifyOptions

        with self.pipeline("execute") as pipeline:
            options = VerifyOptions(share=self.sample, rate=self.rate)
            found = pipeline.verify(_chosen(self.tables), options=options, repair=self.repair)
        for table in found.tables:
            say = self.log.info if table.verdict == "equal" else self.log.error
            say("%s", in_airflow(f"{table.in_words()} {table.remedy or ''}".rstrip()))
            for row in table.differences:
                key = "a row" if table.keyless else ", ".join(row.key.values())
                say("%s: %s: %s", row.kind, key, ", ".join(row.columns) or "the whole row")
        answer = found.as_json(with_rows=False)
        if not found.is_proven:
            context["ti"].xcom_push(BaseXCom.XCOM_RETURN_KEY, answer)
            raise failure(_unequal(found))
        return answer


def _unequal(found: Verified) -> PgetlError:
    words = " ".join(table.in_words() for table in found.tables if table.verdict != "equal")
    remedies = [table.remedy for table in found.not_compared if table.remedy]
    if found.repaired:
        remedies.append("Tables that differ are copied again by the next run.")
    elif found.different:
        remedies.append("Copy tables that differ again, by a `ResyncOperator` or `repair=True`.")
    return PgetlError(ErrorKind.VALUE, words, remedy=" ".join(dict.fromkeys(remedies)))


class PauseOperator(PipelineOperator):
    """Pauses a pipeline: nothing is streamed and no copy begins, until a `ResumeOperator` or ``pgetl resume`` has run.

    `apply` stays deferred, and continues by itself when the pipeline is resumed; so do the tasks of tables that are not
    Ready yet. When this task has succeeded, the streams have ended; copies that have begun continue. Nothing is lost,
    but the source retains its WAL for as long as the pause lasts. An example is maintenance of a destination::

        PauseOperator(task_id="pause", replication=shop.replication)

    :param replication: what a `ReplicationDag` or a `ReplicationTaskGroup` has as `replication`.
    """

    def execute(self, context: Context) -> None:
        del context
        with self.pipeline("execute") as pipeline:
            pipeline.pause()
        self.log.info("Pipeline %s is paused; the source retains its WAL until it is resumed.", self.pipeline_id)


class ResumeOperator(PipelineOperator):
    """Resumes a pipeline that was paused. The XCom is whether it was::

        ResumeOperator(task_id="resume", replication=shop.replication)

    :param replication: what a `ReplicationDag` or a `ReplicationTaskGroup` has as `replication`.
    """

    def execute(self, context: Context) -> bool:
        del context
        with self.pipeline("execute") as pipeline:
            was_paused = pipeline.resume()
        self.log.info("Pipeline %s %s.", self.pipeline_id, "goes on" if was_paused else "was not paused")
        return was_paused


class DestroyOperator(PipelineOperator):
    """Removes a pipeline: its replication slots, the publications that were made for it, its state, and its metadata in
    the destination. Tables and rows in the destination stay, and so does a publication that pgetl does not manage.

    Refused while the pipeline is streamed or copied: pause the DAG of the replication first, and mark its run as
    failed. It waits up to 40 seconds for a stream that ends by itself, like the worker of a run that has just been
    rotated. A later run of that DAG begins anew, and copies every table. Where nothing is left to remove, the task
    succeeds. The XCom is the list of what was removed::

        DestroyOperator(task_id="destroy", replication=shop.replication)

    :param replication: what a `ReplicationDag` or a `ReplicationTaskGroup` has as `replication`.
    """

    ui_color = "#f3e1de"

    def execute(self, context: Context) -> list[str]:
        from airflow_provider_pgetl.triggers.child import OVER_SECONDS

        del context
        with self.pipeline("execute") as pipeline:
            removed = pipeline.destroy(OVER_SECONDS)
        for what in removed:
            self.log.info("Removed: %s", what)
        if not removed:
            self.log.info("Nothing was removed: there is no state of pipeline %s.", self.pipeline_id)
        return removed
