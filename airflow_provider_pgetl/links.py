"""Links of a table's tasks: the table in the source, its replica, and its state.

A Postgres server has no page to show, so the address is the server's URI, without user or password, with the name of
the table as its fragment: what a database client opens. It is looked up when a task ends or is deferred, in the process
of the task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseHook, BaseOperatorLink

from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.naming import pipeline_address

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Connection
    from airflow.sdk.types import TaskInstanceKey

    from airflow_provider_pgetl.declarations import Replication

_PORT = 5432


@attrs.define()
class SourceLink(BaseOperatorLink):
    """A link to the table in the source."""

    @property
    def name(self) -> str:
        return "Source table"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Returns the address of the table in the source."""
        del ti_key
        replication, table = _of(operator)
        return address(BaseHook.get_connection(replication.connections.source), table)


@attrs.define()
class ReplicaLink(BaseOperatorLink):
    """A link to the table's replica, where a server has it."""

    @property
    def name(self) -> str:
        return "Replica"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Returns the address of the table in the destination; empty for a custom destination."""
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
    """A link to the replication page of the pipeline, at the line of the table if the task is a table's."""

    @property
    def name(self) -> str:
        return "Replication"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Returns the address of the page in this Airflow."""
        del ti_key
        table = getattr(operator, "table", None)
        return pipeline_address(conf.get("api", "base_url", fallback="") or "", operator.pipeline_id, table)  # type: ignore[attr-defined] # all tasks of a pipeline have its id


def address(connection: Connection, table: TableName) -> str:
    """Returns the address of a table, without secrets."""
    host = connection.host or "localhost"
    return f"postgresql://{host}:{connection.port or _PORT}/{connection.schema or ''}#{table}"


def _of(operator: BaseOperator) -> tuple[Replication, TableName]:
    return operator.replication, operator.table  # type: ignore[attr-defined] # only tasks of tables have these links
