"""What tasks, pipelines and their owners are called: readable where the names allow, unambiguous always."""

from __future__ import annotations

import re
from hashlib import sha256

from airflow_provider_pgetl.engine.model.tables import TableName

_PLAIN = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
_LONGEST = 60
_LONGEST_PIPELINE = 24
_DIGITS = 6


def group_id(table: TableName) -> str:
    """``schema__table``; for names that would not survive that, something like them, and a few digits of a hash."""
    parts = (table.schema, table.name)
    if all(_PLAIN.fullmatch(part) for part in parts) and len("__".join(parts)) <= _LONGEST:
        return "__".join(parts)
    slug = "__".join(re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_") or "x" for part in parts)
    return f"{slug[:_LONGEST]}_{_digits(*parts)}"


def pipeline_id(dag_id: str, group: str | None = None) -> str:
    """A pipeline's id from its DAG's, and from its group's if it is one: lower case, single underscores. One that is
    too long for the name of a slot is cut, and has a few digits of a hash."""
    parts = (dag_id,) if group is None else (dag_id, group)
    slug = "_".join(re.sub(r"[^a-z0-9]+", "_", part.lower()).strip("_") for part in parts).strip("_")
    if 0 < len(slug) <= _LONGEST_PIPELINE:
        return slug
    digits = _digits(*parts)
    return f"{slug[: _LONGEST_PIPELINE - _DIGITS - 1].strip('_') or 'x'}_{digits}"


def owner(dag_id: str, group: str | None = None) -> str:
    """Who declares a pipeline, as its state has it. Neither a DAG's id nor a group's has a slash or an @."""
    return dag_id if group is None else f"{dag_id}/{group}"


def at_deployment(owner: str, deployment: str) -> str:
    return f"{owner}@{deployment}"


def _digits(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:_DIGITS]
