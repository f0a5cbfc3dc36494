"""What others may do to a table, and what makes it one that is not written to any more. Pure.

* Harmless: rows that they add, change or take out, also by deletion vectors; files that they write anew (OPTIMIZE), a
  vacuum, plain properties, a change data feed. Our commits stand on top of theirs.
* Carried along: columns that they add (`Shape.layout_in`).
* `overruling`, by a commit: another state in the place of the table's. A copy puts it right.
* `unfit`, by what the table demands now of its writers: names, values or actions of which we know nothing. Nothing is
  written to it before that is taken away, nor is it copied.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any


def overruling(commit: bytes) -> str | None:
    """What a commit of others did, if it has put another state in the place of the table's. Rows that others have
    added, changed, taken out or marked as deleted, and files that they have written anew, are no such thing."""
    try:
        actions = [json.loads(line) for line in commit.splitlines() if line.strip()]
    except ValueError:
        return None
    for action in actions:
        info = action.get("commitInfo") or {}
        operation = str(info.get("operation", ""))
        if operation in ("RESTORE", "CLONE") or "REPLACE TABLE" in operation or _is_overwrite(operation, info):
            return operation
    return None


def _is_overwrite(operation: str, info: Mapping[str, Any]) -> bool:
    """Of the whole table."""
    about = info.get("operationParameters") or {}
    return operation == "WRITE" and about.get("mode") == "Overwrite" and not about.get("predicate")


_FEATURES = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "columnMapping",
    "deletionVectors",
    "generatedColumns",
    "invariants",
    "timestampNtz",
    "v2Checkpoint",
    "variantType",
    "variantType-preview",
}
_IDENTITY_SINCE, _LISTED_SINCE = 6, 7
_CONSTRAINT = "delta.constraints."
_TYPES = {
    "string",
    "long",
    "integer",
    "short",
    "byte",
    "float",
    "double",
    "boolean",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
}


def unfit(
    writer_version: int, features: Collection[str], configuration: Mapping[str, str], schema: Mapping[str, Any]
) -> str | None:
    """What a table has that we cannot keep to, as the end of a sentence. `features` are those of readers and writers,
    where it lists them; of those that we know, what counts is whether they are made use of. That the table is only to
    be added to is told by the library, once something is to be removed."""
    if unknown := sorted(set(features) - _FEATURES):
        return f"the feature {', '.join(unknown)}"
    if writer_version == _IDENTITY_SINCE or writer_version > _LISTED_SINCE:
        return f"version {writer_version} of the protocol for writers"
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        return "column mapping"
    if names := sorted(name.removeprefix(_CONSTRAINT) for name in configuration if name.startswith(_CONSTRAINT)):
        return f"the CHECK constraint {', '.join(names)}"
    for column in schema["fields"]:
        if "delta.invariants" in column["metadata"]:
            return f"an invariant of the column {column['name']}"
        if "delta.generationExpression" in column["metadata"]:
            return f"the generated column {column['name']}"
        if strange := _strange(column["type"]):
            return f"the column {column['name']} of type {strange}"
    return None


def _strange(kind: Any) -> str | None:
    """The type, or what it is made of, that our files cannot hold."""
    if isinstance(kind, str):
        return None if kind in _TYPES or kind.startswith("decimal(") else kind
    inner = [kind.get(part) for part in ("elementType", "keyType", "valueType") if part in kind]
    inner += [one["type"] for one in kind.get("fields", ())]
    return next(filter(None, map(_strange, inner)), None)
