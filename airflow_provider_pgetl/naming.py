"""Names of task groups, pipelines and owners, and addresses of the replication page.

Names are readable where the originals allow it, and always unambiguous.
"""

from __future__ import annotations

import re
from hashlib import sha256
from urllib.parse import quote

from airflow_provider_pgetl.engine.model.tables import TableName

_PLAIN = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
_LONGEST = 60
_LONGEST_PIPELINE = 24
_DIGITS = 6


def group_id(table: TableName) -> str:
    """Returns ``schema__table``; for names that would be ambiguous, invalid or too long in that form, a similar one
    that ends with a few digits of a hash."""
    parts = (table.schema, table.name)
    if all(_PLAIN.fullmatch(part) for part in parts) and len("__".join(parts)) <= _LONGEST:
        return "__".join(parts)
    slug = "__".join(re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_") or "x" for part in parts)
    return f"{slug[:_LONGEST]}_{_digits(*parts)}"


def pipeline_id(dag_id: str, group: str | None = None) -> str:
    """Returns the id of a pipeline made of the ids of its DAG and, if it is in one, of its group: lower case, single
    underscores. An id that is too long for the name of a slot is cut, and ends with a few digits of a hash."""
    parts = (dag_id,) if group is None else (dag_id, group)
    slug = "_".join(re.sub(r"[^a-z0-9]+", "_", part.lower()).strip("_") for part in parts).strip("_")
    if 0 < len(slug) <= _LONGEST_PIPELINE:
        return slug
    digits = _digits(*parts)
    return f"{slug[: _LONGEST_PIPELINE - _DIGITS - 1].strip('_') or 'x'}_{digits}"


def owner(dag_id: str, group: str | None = None) -> str:
    """Returns the owner of a pipeline, as the pipeline's state records it. Ids of DAGs and groups contain neither slash
    nor @."""
    return dag_id if group is None else f"{dag_id}/{group}"


def at_deployment(owner: str, deployment: str) -> str:
    return f"{owner}@{deployment}"


def _digits(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:_DIGITS]


# -- Addresses of the replication page ---------------------------------------------------------------------------------

MOUNT = "/pgetl"


def pipeline_address(base_url: str, pipeline: str, table: TableName | None = None) -> str:
    """Returns the address of a pipeline's page, at the line of a table if one is given, in the Airflow at
    `base_url`."""
    mark = "" if table is None else f"#{anchor(table)}"
    return f"{base_url.rstrip('/')}{MOUNT}/pipelines/{quote(pipeline, safe='')}{mark}"


def anchor(table: TableName) -> str:
    return quote(str(table), safe="")
