"""Commits of others after which the rows of a table cannot be relied on. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def overruling(commit: bytes) -> str | None:
    """What a commit of others did, if it has put another state in the place of the table's, or has marked rows as
    deleted that its files still have: a log says of a deletion vector what our commits cannot. Rows that others have
    added, changed or taken out, and files that they have written anew, are no such thing."""
    try:
        actions = [json.loads(line) for line in commit.splitlines() if line.strip()]
    except ValueError:
        return None
    for action in actions:
        info, added = action.get("commitInfo") or {}, action.get("add") or {}
        operation = str(info.get("operation", ""))
        if operation in ("RESTORE", "CLONE") or "REPLACE TABLE" in operation or _is_overwrite(operation, info):
            return operation
        if added.get("deletionVector") is not None:
            return "deletion vector"
    return None


def _is_overwrite(operation: str, info: Mapping[str, Any]) -> bool:
    """Of the whole table."""
    about = info.get("operationParameters") or {}
    return operation == "WRITE" and about.get("mode") == "Overwrite" and not about.get("predicate")
