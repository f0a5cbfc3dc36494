"""The assets by which other DAGs are scheduled on what is replicated.

    with DAG("orders_report", schedule=replica_asset("shop", "public.orders")): ...

A replica's asset is named by the pipeline and the table as declared, not by the address of a server: that is in a
connection, which no DAG file looks up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow_provider_pgetl.engine.table_names import parse_table

if TYPE_CHECKING:
    from airflow.sdk import Asset

SCHEME = "pgetl"


def replica_asset(pipeline_id: str, table: str | None = None) -> Asset:
    """The replica of a table, or, without one, of the whole pipeline.

    A table's is updated when the table becomes Ready and, in a pipeline that runs `until="caught_up"`, by every run in
    which it has caught up; the pipeline's by every such run.

    :param pipeline_id: the pipeline's id: what `pipeline_id=` says, by default the DAG's id in lower case.
    :param table: ``schema.table``, as it is declared.
    """
    from airflow.sdk import Asset

    parts = [pipeline_id]
    if table is not None:
        name = parse_table(table)
        parts += [name.schema, name.name]
    return Asset(uri=f"{SCHEME}://{'/'.join(quote(part, safe='') for part in parts)}", group="pgetl")
