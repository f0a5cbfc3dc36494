"""Pipelines that DAGs declare, for the commands: ``airflow:shop`` for that of a `ReplicationDag`,
``airflow:shop/replication`` for that of a `ReplicationTaskGroup`.

The command must run where Airflow is configured: the DAG's file is found through Airflow's database, and read as
Airflow reads it. Connections are looked up as the api-server does. The commands act in the name of the DAG, which owns
the pipeline; only the DAG itself runs it.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_pgetl.engine.config.pipeline_file import PipelineFile
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from jinja2 import Environment

    from airflow_provider_pgetl.connections import ConnectionIds
    from airflow_provider_pgetl.declarations import Replication

PREFIX = "airflow:"
_RUN_BY_ITS_DAG = "Unpause its DAG, or trigger a run there."


@dataclass(frozen=True, slots=True)
class DeclaredPipeline:
    """A pipeline of a DAG, in the form of one that a file declares; `environment` has the values of its references."""

    file: PipelineFile
    environment: Mapping[str, str]


def is_of_airflow(path: Path) -> bool:
    return str(path).startswith(PREFIX)


def refuse_to_run(path: Path) -> None:
    if is_of_airflow(path):
        raise PgetlError(ErrorKind.USAGE, f"{path} is run by Airflow.", remedy=_RUN_BY_ITS_DAG)


def declared_pipeline(path: Path) -> DeclaredPipeline:
    """Returns the pipeline that ``airflow:DAG`` or ``airflow:DAG/GROUP`` names."""
    os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "WARNING")  # Airflow reads it when it is first imported
    import airflow.configuration  # noqa: F401  it has warnings about Airflow's own code shown

    if not sys.warnoptions:
        warnings.simplefilter("ignore")

    from airflow_provider_pgetl.connections import stored_environment
    from airflow_provider_pgetl.running_airflow import team_of

    owner = str(path).removeprefix(PREFIX)
    dag_id = owner.partition("/")[0]
    with _output_kept_clean():
        dag = _read_dag(dag_id)
    found = _pipelines(dag)
    if owner not in found:
        others = " or ".join(f"{PREFIX}{each}" for each in sorted(found)) or "none"
        message = f"The DAG {dag_id!r} declares no pipeline {owner!r}."
        raise PgetlError(ErrorKind.USAGE, message, remedy=f"It declares {others}.")
    replication = found[owner]
    origins = tuple(("tables", at) for at in range(len(replication.spec.tables)))
    file = PipelineFile(path, replication.spec, {}, origins)
    values = stored_environment(_rendered(replication.connections, dag), team_of(dag_id))
    return DeclaredPipeline(file, {**os.environ, **values})


def _pipelines(dag: DAG) -> Mapping[str, Replication]:
    """Returns the DAG's replications by their owners, without the deployment; their own owners contain the
    deployment."""
    from airflow_provider_pgetl.operators.base import PipelineOperator

    tasks = [task for task in dag.tasks if isinstance(task, PipelineOperator)]
    return {task.replication.spec.owner: task.owned for task in tasks if task.replication.spec.owner is not None}


def _rendered(connections: ConnectionIds, dag: DAG) -> ConnectionIds:
    """Resolves templates, as far as that is possible without a run."""
    from jinja2 import StrictUndefined

    environment = dag.get_template_env(force_sandboxed=True)
    environment.undefined = StrictUndefined
    named = {each: conn_id for each, conn_id in connections.as_json().items() if conn_id is not None}
    return replace(connections, **{each: _render(environment, conn_id, dag) for each, conn_id in named.items()})


def _render(environment: Environment, conn_id: str, dag: DAG) -> str:
    from jinja2 import TemplateError

    try:
        return environment.from_string(conn_id).render(dag=dag, params=dag.params.dump())
    except TemplateError as error:
        message = f"The connection {conn_id!r} is a template that only a task resolves: {error}."
        remedy = "Write a pipeline file with the same id and the URIs, and name that."
        raise PgetlError(ErrorKind.USAGE, message, remedy=remedy) from None


@contextmanager
def _output_kept_clean() -> Iterator[None]:
    """Redirects standard output to standard error, so that it contains only the command's answer, not what Airflow logs
    or a DAG's file prints."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _read_dag(dag_id: str) -> DAG:
    """Reads the DAG from its own file alone: other files may be slow, or broken."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.models.dag import DagModel

    from airflow_provider_pgetl.running_airflow import read_dags

    model = DagModel.get_dagmodel(dag_id)
    if model is None or model.relative_fileloc is None:
        message = f"Airflow knows no DAG {dag_id!r}."
        raise PgetlError(ErrorKind.USAGE, message, remedy="`airflow dags list` lists those that it knows.")
    bundle = DagBundlesManager().get_bundle(model.bundle_name)  # type: ignore[no-untyped-call]
    bundle.initialize()
    place = bundle.path / model.relative_fileloc
    bag = read_dags(place, bundle)
    dag: DAG | None = bag.dags.get(dag_id)
    if dag is None:
        why = next(iter(bag.import_errors.values()), "").strip().splitlines()[-1:] or ["it is not in there"]
        message = f"The DAG {dag_id!r} cannot be read from {place}: {why[0].rstrip('.')}."
        raise PgetlError(ErrorKind.USAGE, message, remedy="Mend the file.")
    return dag
