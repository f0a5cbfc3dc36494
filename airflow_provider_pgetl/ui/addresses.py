"""Addresses of the replication page. Pure."""

from __future__ import annotations

from urllib.parse import quote

from airflow_provider_pgetl.engine.model.tables import TableName

MOUNT = "/pgetl"


def pipeline_address(base_url: str, pipeline: str, table: TableName | None = None) -> str:
    """Returns the address of a pipeline's page, at the line of a table if one is given, in the Airflow at
    `base_url`."""
    mark = "" if table is None else f"#{anchor(table)}"
    return f"{base_url.rstrip('/')}{MOUNT}/pipelines/{quote(pipeline, safe='')}{mark}"


def anchor(table: TableName) -> str:
    return quote(str(table), safe="")
