"""What the tasks of a table are called: readable where its name allows, unambiguous always."""

from __future__ import annotations

import re
from hashlib import sha256

from airflow_provider_pgetl.engine.tables import TableName

_PLAIN = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
_LONGEST = 60
_DIGITS = 6


def group_id(table: TableName) -> str:
    """``schema__table``; for names that would not survive that, something like them, and a few digits of a hash."""
    parts = (table.schema, table.name)
    if all(_PLAIN.fullmatch(part) for part in parts) and len("__".join(parts)) <= _LONGEST:
        return "__".join(parts)
    slug = "__".join(re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_") or "x" for part in parts)
    digits = sha256("\0".join(parts).encode()).hexdigest()[:_DIGITS]
    return f"{slug[:_LONGEST]}_{digits}"
