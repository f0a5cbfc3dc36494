"""The pipelines of this Airflow: those whose `apply` is in a DAG that is in use.

They are found by the source tables, which are inlets of `apply` and so in Airflow's database as assets; DAGs that have
none are never read. This runs in the api-server only, where the database is accessible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.models.asset import AssetModel, TaskInletAssetReference
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.serialized_dag import SerializedDagModel
from sqlalchemy import select

from airflow_provider_pgetl.assets import SOURCE_SCHEME
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.naming import group_id
from airflow_provider_pgetl.running_airflow import team_of

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

_APPLY = "ApplyOperator"
_READ_MOST = 1000


@dataclass(frozen=True, slots=True)
class KnownPipeline:
    """A pipeline that a DAG declares. The connections of its state and of its source are None where they are templates
    that no run has resolved yet. `team` is the DAG's. `groups`: the ids of the DAG's task groups, of which those within
    the task group `within` are the pipeline's."""

    id: str
    dag_id: str
    state_conn_id: str | None
    source_conn_id: str | None = None
    team: str | None = None
    within: str = field(default="", compare=False)
    groups: frozenset[str] = field(default=frozenset(), compare=False)

    def group_of(self, table: TableName) -> str | None:
        """Returns the id of the group with the table's tasks; None if it has none."""
        group = f"{self.within}.{group_id(table)}" if self.within else group_id(table)
        return group if group in self.groups else None


class _Apply(NamedTuple):
    """What is read of an `apply` task."""

    task_id: str
    pipeline_id: str
    connections: Any
    groups: frozenset[str]


_READ: dict[str, tuple[_Apply, ...]] = {}


def known_pipelines(session: Session, readable: Collection[str] | None) -> list[KnownPipeline]:
    """Returns the pipelines of the DAGs in `readable`, or of all, sorted."""
    dag_ids = [dag_id for dag_id in session.scalars(_DAGS) if readable is None or dag_id in readable]
    found = SerializedDagModel.get_latest_serialized_dags(dag_ids=dag_ids, session=session) if dag_ids else ()
    pipelines = [known for each in found for known in _of_dag(session, each)]
    return sorted(pipelines, key=lambda known: (known.id, known.dag_id))


_DAGS = (
    select(TaskInletAssetReference.dag_id)
    .join(AssetModel, AssetModel.id == TaskInletAssetReference.asset_id)
    .join(DagModel, DagModel.dag_id == TaskInletAssetReference.dag_id)
    .where(AssetModel.uri.startswith(f"{SOURCE_SCHEME}://", autoescape=True), DagModel.is_stale.is_(False))
    .distinct()
)


def _of_dag(session: Session, serialized: SerializedDagModel) -> Iterator[KnownPipeline]:
    team = team_of(serialized.dag_id)
    for apply in _applies(serialized):
        state, source = _ids(apply.connections)
        if state is None or source is None:
            rendered = _ids(_rendered(session, serialized.dag_id, apply.task_id).get("connections"))
            state, source = state or rendered[0], source or rendered[1]
        within = apply.task_id.rpartition(".")[0]
        yield KnownPipeline(apply.pipeline_id, serialized.dag_id, state, source, team, within, apply.groups)


def _applies(serialized: SerializedDagModel) -> tuple[_Apply, ...]:
    """Returns the `apply` tasks of a DAG. To deserialise a DAG of hundreds of tables takes half a second, so it is done
    once for each version of it."""
    found = _READ.get(serialized.dag_hash)
    if found is None:
        groups = frozenset(filter(None, serialized.dag.task_group.get_task_group_dict()))
        found = tuple(
            _Apply(task.task_id, str(getattr(task, "pipeline_id", "")), getattr(task, "connections", None), groups)
            for task in serialized.dag.tasks
            if task.task_type == _APPLY
        )
        if len(_READ) >= _READ_MOST:
            _READ.clear()
        _READ[serialized.dag_hash] = found
    return found


def _ids(connections: Any) -> tuple[str | None, str | None]:
    """Returns the ids of the connections of state and source."""
    return _id(connections, "state"), _id(connections, "source")


def _id(connections: Any, name: str) -> str | None:
    conn_id = connections.get(name) if isinstance(connections, Mapping) else None
    return None if conn_id is None or "{{" in conn_id or "{%" in conn_id else str(conn_id)


def _rendered(session: Session, dag_id: str, task_id: str) -> Mapping[str, Any]:
    """Returns the template fields of the task as the latest run rendered them."""
    fields = RenderedTaskInstanceFields
    query = (
        select(fields.rendered_fields)
        .join(DagRun, (DagRun.dag_id == fields.dag_id) & (DagRun.run_id == fields.run_id))
        .where(fields.dag_id == dag_id, fields.task_id == task_id)
        .order_by(DagRun.run_after.desc())
        .limit(1)
    )
    return session.scalar(query) or {}
