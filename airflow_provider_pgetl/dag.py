"""A replication as a DAG, or as a task group within one: every phase of every table is a task that can be seen, retried
and cleared.

                ┌─▶ apply
    prepare ────┤
                └─▶ for each table:  init ─▶ data_sync ─▶ finished_copy ─▶ sync_done ─▶ ready

With `tasks="compact"` a table has two tasks, which together do the same:  data_sync ─▶ ready

For a lake whose changes land beside its tables, a run `until="caught_up"` has a task `merge` after `apply`.

`apply` runs beside the tasks of the tables: it streams the changes that bring a table from its finished copy to Ready,
and that follow.

The tables are those that are declared. Nothing is looked up when the file is parsed: no server, no connection.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, BaseOperator, TaskGroup

from airflow_provider_pgetl import naming, wording
from airflow_provider_pgetl.assets import replica_asset
from airflow_provider_pgetl.declarations import (
    Copying,
    DestinationDeclaration,
    Replication,
    Streaming,
    TaskShape,
    Transformation,
    Until,
    check_run,
    check_task_shape,
    declare,
)
from airflow_provider_pgetl.engine.config.spec import OnSlotLost, TableSpec, TransformSpec
from airflow_provider_pgetl.engine.config.validation import refuse, suggestion
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName, parse_table
from airflow_provider_pgetl.operators.apply import ApplyOperator, MergeOperator
from airflow_provider_pgetl.operators.base import PipelineOperator
from airflow_provider_pgetl.operators.data_sync import DataSyncOperator, InitOperator
from airflow_provider_pgetl.operators.prepare import PrepareOperator
from airflow_provider_pgetl.running_airflow import BACKOFF, without_backfills
from airflow_provider_pgetl.sensors.arrival import FinishedCopySensor, ReadySensor, SyncDoneSensor

RETRIES: Mapping[str, Any] = {
    "retries": 3,
    "retry_delay": timedelta(seconds=15),
    "retry_exponential_backoff": BACKOFF,
    "max_retry_delay": timedelta(minutes=10),
}
# Nothing streams before these two tasks have run: they have priority over the tables' tasks, and over those of other
# DAGs.
FIRST: Mapping[str, Any] = {"priority_weight": 1_000_000, "weight_rule": "absolute"}
ONE_DAY = timedelta(days=1)
TAGS = ("pgetl", "replication")
_DECLARED = [name for name in signature(declare).parameters if name not in ("pipeline_id", "owner")]
_COMPACT = ("data_sync", "ready")
_LONG_AGO = datetime(2024, 1, 1, tzinfo=UTC)


def _declared(given: Mapping[str, Any], dag_id: str, group_id: str | None = None) -> Replication:
    """Declares the replication. `given`: the arguments of the DAG or the group, among them those of `declare`."""
    pipeline_id = given["pipeline_id"] or naming.pipeline_id(dag_id, group_id)
    arguments = {name: given[name] for name in _DECLARED}
    return declare(pipeline_id, owner=naming.owner(dag_id, group_id), **arguments)


class ReplicationDag(DAG):
    """A DAG that replicates the declared tables.

    :param dag_id: the DAG's id.
    :param source_conn_id: the Airflow postgres connection of the source.
    :param tables: the tables, as ``"schema.table"`` or `Table(...)`.
    :param destination: where they are replicated to: `Postgres(...)`, `DeltaLake(...)` or `CustomDestination(...)`.
    :param state_conn_id: the Airflow postgres connection of the database that keeps the pipeline's state, in a schema
        of its own, ``pgetl``. By default the source's; if the source is a standby, another is needed.
    :param spark_conn_id: the Airflow spark or spark_connect connection by which tables are copied.
    :param pipeline_id: the pipeline's id, after which publication, slots and state are named; by default made of
        `dag_id`. At most 24 characters. A pipeline belongs to the DAG or group that first runs it; any other is
        refused.
    :param adopt: take the pipeline over from this owner: the id of the DAG that had it, or ``"dag_id/group_id"``.
    :param until: None streams for ever: the schedule is then ``"@continuous"`` by default, and a run ends after
        `rotate_after`, and the next one takes over. ``"caught_up"`` ends a run when everything that was committed at
        the source before the run is in the destination: for ordinary schedules.
    :param tasks: ``"full"`` gives each table a task for each of its phases, ``"compact"`` two, `data_sync` and `ready`:
        for hundreds of tables, or an executor that starts a pod for each task.
    :param rotate_after: see `until`; a text like ``"12h"``, or a `timedelta`. None: never.
    :param publication: the publication's name; by default ``pgetl_<pipeline_id>``.
    :param manage_publication: False to use an existing publication without changing it.
    :param on_slot_lost: what to do when changes may be missing: ``"error"``, or ``"resync"`` to copy again.
    :param failover: let the slot survive a failover of the source (PostgreSQL 17 and later).
    :param copying: how copies are made.
    :param streaming: how changes are streamed, and when tasks fail.
    :param spark_submit: further arguments of ``spark-submit``.
    :param transform: rules that replace values on their way, each a `Transform(...)`; those of a `Table` come first.
    :param transformation: what holds for all rules.
    :param schedule: as for any DAG.
    :param default_args: as for any DAG; the defaults of `RETRIES` apply where it does not name them.

    All other arguments are those of `airflow.sdk.DAG`. The DAG's tags include `TAGS`, by which all such DAGs can be
    found.
    """

    def __init__(
        self,
        dag_id: str,
        *,
        source_conn_id: str,
        tables: Sequence[str | TableSpec],
        destination: DestinationDeclaration,
        state_conn_id: str | None = None,
        spark_conn_id: str = "spark_default",
        pipeline_id: str | None = None,
        adopt: str | None = None,
        until: Until = None,
        tasks: TaskShape = "full",
        rotate_after: str | timedelta | None = ONE_DAY,
        publication: str | None = None,
        manage_publication: bool = True,
        on_slot_lost: OnSlotLost = "error",
        failover: bool = False,
        copying: Copying = Copying(),
        streaming: Streaming = Streaming(),
        spark_submit: str = "",
        transform: Sequence[TransformSpec] = (),
        transformation: Transformation = Transformation(),
        schedule: Any = ...,
        default_args: Mapping[str, Any] | None = None,
        **dag_arguments: Any,
    ) -> None:
        replication = _declared(locals(), dag_id)
        if schedule is ...:
            schedule = "@continuous" if until is None else None
        super().__init__(
            dag_id,
            schedule=schedule,
            default_args={**RETRIES, **(default_args or {})},
            **{
                "max_active_runs": 1,
                "catchup": False,
                # Backfill runs are concurrent, whatever `max_active_runs` says, and have nothing to replicate.
                **without_backfills(),
                **_begun(schedule),
                **dag_arguments,
                "tags": {*TAGS, *(dag_arguments.get("tags") or ())},
            },
        )
        # Airflow takes the file from the caller of its own constructor, which is this one.
        self.fileloc = sys._getframe(1).f_code.co_filename  # noqa: SLF001 - there is no public way
        self.replication = replication
        with self:
            _Tasks(replication, "", tasks, until, rotate_after).make(self)

    def __getitem__(self, node_id: str) -> Any:
        """Returns the tasks of a table by its name, ``schema.table``, as `TableTasks`; or any task or group by its
        id."""
        found = table_tasks(self.task_group, node_id)
        if found is not None:
            return found
        nodes = {**self.task_group_dict, **self.task_dict}
        if node_id not in nodes:
            message = f"There is no table, task or group {node_id} in {self.dag_id}"
            raise KeyError(message)
        return nodes[node_id]


class TableTasks(TaskGroup):
    """The task group of one table; each of its tasks is a property. What follows `ready` runs in every run in which the
    table reaches it::

        shop["public.orders"].ready >> report()
    """

    table: TableName
    pipeline_id: str

    @property
    def init(self) -> BaseOperator:
        return self._task("init")

    @property
    def data_sync(self) -> BaseOperator:
        return self._task("data_sync")

    @property
    def finished_copy(self) -> BaseOperator:
        return self._task("finished_copy")

    @property
    def sync_done(self) -> BaseOperator:
        return self._task("sync_done")

    @property
    def ready(self) -> BaseOperator:
        """The task that succeeds when the table is Ready and, in a run `until="caught_up"`, has caught up with the
        source as it was when the task began."""
        return self._task("ready")

    @property
    def asset(self) -> Asset:
        """The asset on which other DAGs can be scheduled; see `replica_asset`."""
        return replica_asset(self.pipeline_id, str(self.table))

    def _task(self, name: str) -> BaseOperator:
        task = self.children.get(f"{self.group_id}.{name}")
        if not isinstance(task, BaseOperator):
            message = f'{self.table} has no task `{name}`: with tasks="compact" there are {" and ".join(_COMPACT)}.'
            raise KeyError(message)
        return task


def table_tasks(group: TaskGroup, name: str) -> TableTasks | None:
    """Returns the tasks of the table of that name among a pipeline's tasks; None if there are none."""
    try:
        table = parse_table(name)
    except PgetlError:
        return None  # the id of a task or a group
    tables = (child for child in group.children.values() if isinstance(child, TableTasks))
    return next((one for one in tables if one.table == table), None)


def _retries(declared: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns those of `RETRIES` that the DAG's own `default_args` do not set: the defaults of a group would override
    them."""
    return {name: value for name, value in RETRIES.items() if name not in declared}


def _begun(schedule: Any) -> Mapping[str, Any]:
    """Returns a start date for a continuous DAG: without one Airflow takes the second run for the first, and never
    creates it."""
    return {"start_date": _LONG_AGO} if schedule == "@continuous" else {}


class ReplicationTaskGroup(TaskGroup):
    """The same tasks as a group within a DAG of your own. What follows the group follows all of them.

    By default it runs `until="caught_up"`, and ends with a task `caught_up`: a group that streams for ever has nothing
    downstream.

    :param group_id: the group's id.
    :param pipeline_id: as for `ReplicationDag`; by default made of the ids of the DAG and the group.
    :param until: as for `ReplicationDag`; by default ``"caught_up"``.

    All other arguments are those of `ReplicationDag`, and of `airflow.sdk.TaskGroup`.
    """

    def __init__(
        self,
        group_id: str,
        *,
        source_conn_id: str,
        tables: Sequence[str | TableSpec],
        destination: DestinationDeclaration,
        state_conn_id: str | None = None,
        spark_conn_id: str = "spark_default",
        pipeline_id: str | None = None,
        adopt: str | None = None,
        until: Until = "caught_up",
        tasks: TaskShape = "full",
        rotate_after: str | timedelta | None = ONE_DAY,
        publication: str | None = None,
        manage_publication: bool = True,
        on_slot_lost: OnSlotLost = "error",
        failover: bool = False,
        copying: Copying = Copying(),
        streaming: Streaming = Streaming(),
        spark_submit: str = "",
        transform: Sequence[TransformSpec] = (),
        transformation: Transformation = Transformation(),
        default_args: Mapping[str, Any] | None = None,
        **group_arguments: Any,
    ) -> None:
        super().__init__(group_id, **{"default_args": dict(default_args or {}), **group_arguments})
        self.default_args = {**_retries(self.dag.default_args), **self.default_args}
        dag_id, full_id = self.dag.dag_id, str(self.group_id)
        replication = _declared(locals(), dag_id, full_id)
        self.replication = replication
        with self:
            prefix = f"{self.group_id}." if self.prefix_group_id else ""
            made = _Tasks(replication, prefix, tasks, until, rotate_after)
            last = made.make(self.dag)
            if until == "caught_up":
                # What follows must also run where the tables' own tasks were passed over.
                rule = "none_failed_min_one_success"
                caught_up = EmptyOperator(task_id="caught_up", trigger_rule=rule, doc_md=wording.CAUGHT_UP)
                groups = [child for child in self.children.values() if isinstance(child, TaskGroup)]
                caught_up.set_upstream([last, *groups])
                made.prepare.own_tasks.add(caught_up.task_id)

    def __getitem__(self, name: str) -> TableTasks:
        """Returns the tasks of a table by its name, ``schema.table``."""
        found = table_tasks(self, name)
        if found is None:
            known = [str(table) for table in self.replication.tables]
            message = f"There is no table {name} in {self.group_id}{suggestion(name, known)}"
            raise KeyError(message)
        return found


class _Tasks:
    """Makes the tasks within the DAG or group that is the current context. `prefix` is what the group puts before their
    ids."""

    def __init__(
        self,
        replication: Replication,
        prefix: str,
        shape: TaskShape,
        until: Until,
        rotate_after: str | timedelta | None,
    ) -> None:
        check_run(until, rotate_after)
        check_task_shape(shape)
        self._replication = replication
        self._prefix = prefix
        self._shape = shape
        self._until: Until = until
        self._rotate_after = rotate_after

    def make(self, dag: DAG) -> PipelineOperator:
        """Returns the last of the pipeline's own tasks: `merge` if there is one, else `apply`."""
        _refuse_a_second(self._replication.spec.id, dag)
        prepare = self.prepare = PrepareOperator(
            task_id="prepare", replication=self._replication, doc_md=wording.PREPARE, **FIRST
        )
        apply = ApplyOperator(
            task_id="apply",
            replication=self._replication,
            until=self._until,
            rotate_after=self._rotate_after,
            doc_md=wording.APPLY,
            **FIRST,
        )
        prepare >> apply
        for table in self._replication.tables:
            tasks = self._make_table(table)
            prepare >> tasks[0]
            apply.copiers += [task for task in tasks if isinstance(task, DataSyncOperator)]
            prepare.table_tasks[table] = [task.task_id for task in tasks]
        if self._merges:
            merge = MergeOperator(task_id="merge", replication=self._replication, doc_md=wording.MERGE)
            apply >> merge
            return merge
        return apply

    @property
    def _merges(self) -> bool:
        return self._until == "caught_up" and self._replication.spec.destination.lands

    @property
    def _last(self) -> str | None:
        """The id of the task at whose end a run has caught up; None in a run that streams on."""
        return None if self._until is None else f"{self._prefix}{'merge' if self._merges else 'apply'}"

    def _make_table(self, table: TableName) -> list[PipelineOperator]:
        """Makes the tasks of a table, one after the other. They also run where the one before was passed over, so that
        a person can clear one of them."""
        before = [f"{self._prefix}prepare"]
        tasks: list[PipelineOperator] = []
        group = TableTasks(naming.group_id(table), tooltip=str(table))
        group.table, group.pipeline_id = table, self._replication.spec.id
        with group:
            for name, operator, more in self._kinds():
                task = operator(
                    task_id=name,
                    replication=self._replication,
                    table=table,
                    before=before,
                    apply=f"{self._prefix}apply",
                    trigger_rule="none_failed",
                    **more,
                )
                if tasks:
                    tasks[-1] >> task
                tasks.append(task)
                before = [*before, task.task_id]
        return tasks

    def _kinds(self) -> Sequence[tuple[str, type[Any], Mapping[str, Any]]]:
        ready = {"doc_md": wording.READY, "announce": self._until is None, "follows": self._last}
        every = (
            ("init", InitOperator, {"doc_md": wording.INIT}),
            ("data_sync", DataSyncOperator, {"doc_md": wording.DATA_SYNC}),
            ("finished_copy", FinishedCopySensor, {"doc_md": wording.FINISHED_COPY}),
            ("sync_done", SyncDoneSensor, {"doc_md": wording.SYNC_DONE}),
            ("ready", ReadySensor, ready),
        )
        return every if self._shape == "full" else tuple(kind for kind in every if kind[0] in _COMPACT)


def _refuse_a_second(pipeline_id: str, dag: DAG) -> None:
    """Raises if the DAG already has a pipeline of this id. The same id in another DAG is refused at run time."""
    for task in dag.task_dict.values():
        if isinstance(task, PrepareOperator) and task.pipeline_id == pipeline_id:
            remedy = "Give one of the two a `pipeline_id` of its own."
            refuse("pipeline_id", f'"{pipeline_id}" is the pipeline of `{task.task_id}` already.', remedy=remedy)
