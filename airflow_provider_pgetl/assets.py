"""The assets by which other DAGs are scheduled on what is replicated.

    with DAG("orders_report", schedule=replica_asset("shop", "public.orders")): ...

A replica's asset is named by the pipeline and the table as declared, a source table's by the connection: not by the
address of a server, which no DAG file looks up.

Source tables are inlets of the tasks that read them, and show where a replica comes from. Nobody announces changes of
them, so a DAG scheduled on one never runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow_provider_pgetl.declarations import check_pipeline_id
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


def source_asset(conn_id: str, table: TableName) -> Asset:
    """A table of the source that an Airflow connection names."""
    return _asset(SOURCE_SCHEME, conn_id, table)


def _asset(scheme: str, whose: str, table: TableName | None) -> Asset:
    from airflow.sdk import Asset

    parts = [whose] if table is None else [whose, table.schema, table.name]
    return Asset(uri=f"{scheme}://{'/'.join(quote(part, safe='') for part in parts)}", group="pgetl")
