"""The assets by which other DAGs are scheduled on what is replicated.

    with DAG("orders_report", schedule=replica_asset("shop", "public.orders")): ...

A replica's asset is named by the pipeline and the table as declared, a source table's by the connection: not by the
address of a server, which no DAG file looks up.

Runs announce what they have brought. In a pipeline that streams for ever there is no such end, so there a watcher
announces changes as they come, for whoever asks::

    with DAG("orders_report", schedule=replica_changes("shop", "public.orders", state_conn_id="shop")): ...

Source tables are inlets of the tasks that read them, and show where a replica comes from. Nobody announces changes of
them, so a DAG scheduled on one never runs.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_provider_pgetl.declarations import check_pipeline_id
from airflow_provider_pgetl.engine.declaring import refuse
from airflow_provider_pgetl.engine.table_names import parse_table
from airflow_provider_pgetl.engine.tables import TableName

if TYPE_CHECKING:
    from airflow.sdk import Asset

SCHEME, SOURCE_SCHEME = "pgetl", "pgetl-source"


def replica_asset(pipeline_id: str, table: str | None = None) -> Asset:
    """The replica of a table, or, without one, of the whole pipeline.

    A table's is updated when the table becomes Ready and, in a pipeline that runs `until="caught_up"`, by every run
    that has brought changes of it; the pipeline's by every such run, whether anything has changed or not.

    :param pipeline_id: the pipeline's id: what `pipeline_id=` says, by default the DAG's id in lower case.
    :param table: ``schema.table``, as it is declared.
    """
    check_pipeline_id(pipeline_id)
    return _asset(SCHEME, pipeline_id, None if table is None else parse_table(table))


def replica_changes(
    pipeline_id: str, table: str, *, state_conn_id: str, at_most_every: timedelta = timedelta(minutes=1)
) -> Asset:
    """The replica of a table, watched: its asset is updated while the stream brings changes, too.

    The event's ``extra["payload"]`` has the ``position`` up to where the replica has the source's changes, its
    ``generation`` (another one after every new copy), and ``schema_from``, the position since which it has its columns.
    Where changes land beside the tables of a lake (`merge="spark"`), they are not for readers before the merge, which
    announces them: use `replica_asset`.

    :param state_conn_id: the Airflow postgres connection of the database that keeps the pipeline's state: what
        `state_conn_id=` says, by default the source's.
    :param at_most_every: changes within this time are one event.
    """
    from airflow.sdk import AssetWatcher

    from airflow_provider_pgetl.triggers.changes import ChangesTrigger

    check_pipeline_id(pipeline_id)
    seconds = at_most_every.total_seconds()
    if seconds < 1:
        refuse("at_most_every", f"{at_most_every} is less than a second.")
    name = parse_table(table)
    trigger = ChangesTrigger(pipeline_id, state_conn_id, [name.schema, name.name], seconds)
    return _asset(SCHEME, pipeline_id, name, watchers=[AssetWatcher(f"{pipeline_id} {name}", trigger)])


def source_asset(conn_id: str, table: TableName) -> Asset:
    """A table of the source that an Airflow connection names."""
    return _asset(SOURCE_SCHEME, conn_id, table)


def _asset(scheme: str, whose: str, table: TableName | None, **more: Any) -> Asset:
    from airflow.sdk import Asset

    parts = [whose] if table is None else [whose, table.schema, table.name]
    return Asset(uri=f"{scheme}://{'/'.join(quote(part, safe='') for part in parts)}", group="pgetl", **more)
