"""Links of a table's tasks: where the table is at the source, where its replica is, and how it stands.

A Postgres server has no page to show, so the address is its URI, without user or password, the table named behind it:
what a database client opens. It is looked up when a task ends or is deferred, in the process of the task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseHook, BaseOperatorLink

from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.ui.addresses import pipeline_address

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Connection
    from airflow.sdk.types import TaskInstanceKey

    from airflow_provider_pgetl.declarations import Replication

_PORT = 5432


@attrs.define()
class SourceLink(BaseOperatorLink):
    """The table."""

    @property
    def name(self) -> str:
        return "Source table"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The address of the table in the source."""
        del ti_key
        replication, table = _of(operator)
        return address(BaseHook.get_connection(replication.connections.source), table)


@attrs.define()
class ReplicaLink(BaseOperatorLink):
    """Its replica, where that is a server's."""

    @property
    def name(self) -> str:
        return "Replica"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The address of the table in the destination; empty where that is one of a person's own."""
        del ti_key
        replication, table = _of(operator)
        if replication.spec.destination.type == "delta":
            return f"{replication.spec.destination.uri}#{replication.place(table)}"
        conn_id = replication.connections.destination
        if replication.spec.destination.type != "postgres" or conn_id is None:
            return ""
        return address(BaseHook.get_connection(conn_id), replication.place(table))


@attrs.define()
class StateLink(BaseOperatorLink):
    """How the pipeline stands, or, of a table's task, its table: the replication page."""

    @property
    def name(self) -> str:
        return "Replication"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The page in this Airflow."""
        del ti_key
        table = getattr(operator, "table", None)
        return pipeline_address(conf.get("api", "base_url", fallback="") or "", operator.pipeline_id, table)  # type: ignore[attr-defined] # all tasks of a pipeline have its id


def address(connection: Connection, table: TableName) -> str:
    """Where a table is, with nothing secret."""
    host = connection.host or "localhost"
    return f"postgresql://{host}:{connection.port or _PORT}/{connection.schema or ''}#{table}"


def _of(operator: BaseOperator) -> tuple[Replication, TableName]:
    return operator.replication, operator.table  # type: ignore[attr-defined] # links stand on tasks of tables alone
