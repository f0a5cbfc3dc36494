"""What is done to a pipeline now and then, by a DAG of its own: looked at, copied again, taken down.

These tasks stand beside a replication, and are given its declaration: what a `ReplicationDag` or a
`ReplicationTaskGroup` has as `replication`. By it they act in the name of its owner, so that a pipeline of another
owner is refused; and of connections, as everywhere, only ids are known until a task runs. None of them keeps a page in
the book of runs: clear one, or start its DAG again, and it does once more what it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.xcom import BaseXCom

from airflow_provider_pgetl.engine.config import validation
from airflow_provider_pgetl.engine.config.spec import TableSpec
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.findings import Finding, FoundWanting, errors_of, findings_of
from airflow_provider_pgetl.engine.model.tables import TableName, parse_table, written
from airflow_provider_pgetl.failures import failure
from airflow_provider_pgetl.operators.base import PipelineOperator
from airflow_provider_pgetl.wording import in_airflow, told

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.engine.verify.results import Verified


class CheckOperator(PipelineOperator):
    """Looks whether the pipeline could run, as `prepare` will, and for replication slots that are left over at the
    source. Changes no data.

    Fails where something stands in the way. The XCom is all findings, also where it fails: a list of ``{"severity":
    "error" | "warning" | "note", "problem": …, "remedy": …, "table": … | None}``, each of which is a line of the log as
    well. A server that is out of reach is a finding, and not waited for::

        CheckOperator(task_id="check", replication=shop.replication)
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
        """Also what keeps it from looking: a connection that Airflow does not have, a state that is out of reach."""
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
    """Has tables copied again, whole. Their data stays readable in the destination until the new copies are there.

    A replication that streams lets go of the tables, and goes on with the others. Its run has nobody left to copy them:
    a continuous one ends, and the next run copies; where a run is to catch up, it fails, so let none be under way.
    Where nobody streams, the next run copies. The XCom is the list of the tables::

        ResyncOperator(task_id="resync", replication=shop.replication, tables=["{{ params.table }}"])

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
    """As they are declared."""
    if isinstance(tables, str):
        validation.refuse("tables", "it must be a list, not text.", remedy=_FOR_INSTANCE)
    for one in tables if isinstance(tables, list | tuple) else ():
        if isinstance(one, TableSpec):
            validation.refuse("tables", "it must be names, not Table(…).", remedy=_FOR_INSTANCE)


def _chosen(tables: Sequence[str] | None) -> list[TableName] | None:
    """By what the templates have come to."""
    if tables is None:
        return None
    if isinstance(tables, str) or not all(isinstance(name, str) for name in tables):
        message = f"`tables` has come to {tables!r}, which is no list of names."
        raise PgetlError(ErrorKind.CONFIG, message, remedy=_FOR_INSTANCE)
    return [parse_table(name) for name in tables]


class VerifyOperator(PipelineOperator):
    """Compares tables with the source, row by row, at one consistent point, while both are written to.

    Fails where rows differ, or a table could not be compared, as one that is not Ready. The XCom, also where it fails,
    is what was found, without any value of a row: ``{"equal": …, "share": …, "tables": [{"table": …, "verdict": "equal"
    | "different" | "not compared", "position": …, "rows": …, "missing": …, "extra": …, "changed": …, …}], …}``. The log
    names the keys of rows that differ; ``pgetl verify airflow:DAG`` shows their values, too::

        VerifyOperator(task_id="verify", replication=shop.replication, sample=0.05)

    :param tables: the names of tables, ``schema.table``, which may be templates; None for all that the pipeline has.
    :param sample: the share of all keys that is compared, other keys each time.
    :param rate: how many rows a second are read at the source, at most; None for as many as there are.
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
        from airflow_provider_pgetl.engine.verify.verifying import Options

        with self.pipeline("execute") as pipeline:
            options = Options(share=self.sample, rate=self.rate)
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
    """Pauses a pipeline: nothing is streamed and no copy begins, until a `ResumeOperator` has run, or ``pgetl resume``.

    `apply` stays as it is, deferred, and goes on by itself then; so do the tasks of tables that are on their way. When
    this task has succeeded, the streams have ended; copies that have begun go on. Nothing is lost, but the source
    retains its WAL for as long as the pause lasts. For maintenance of a destination, say::

        PauseOperator(task_id="pause", replication=shop.replication)
    """

    def execute(self, context: Context) -> None:
        del context
        with self.pipeline("execute") as pipeline:
            pipeline.pause()
        self.log.info("Pipeline %s is paused; the source retains its WAL until it is resumed.", self.pipeline_id)


class ResumeOperator(PipelineOperator):
    """Has a pipeline go on that was paused. The XCom is whether it was::

    ResumeOperator(task_id="resume", replication=shop.replication)
    """

    def execute(self, context: Context) -> bool:
        del context
        with self.pipeline("execute") as pipeline:
            was_paused = pipeline.resume()
        self.log.info("Pipeline %s %s.", self.pipeline_id, "goes on" if was_paused else "was not paused")
        return was_paused


class DestroyOperator(PipelineOperator):
    """Takes a pipeline down: its replication slots, the publications that were made for it, its state, and what the
    destination remembers of positions. Tables and rows in the destination stay, and so does a publication that is used
    as it is.

    Refused while the pipeline is streamed or copied: pause the DAG of the replication first, and mark its run as
    failed. What ends within 40 seconds, as the worker of a run that has just been rotated, is waited for. A run of that
    DAG after this begins anew, and copies every table. A second time there is nothing left, which is a success. The
    XCom is the list of what was removed::

        DestroyOperator(task_id="destroy", replication=shop.replication)
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
