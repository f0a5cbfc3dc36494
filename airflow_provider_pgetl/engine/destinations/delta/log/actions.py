"""The actions of a commit: `add` and `remove` of the Delta protocol, with the deletion vectors and statistics of files,
and the `protocol` that a table's columns and files need.

delta-rs accepts adds and removes, but supports deletion vectors in neither. A commit with a deletion vector is
therefore written by `TableLog` itself, from `as_json`; any other is passed to delta-rs, from `for_library`.

A logical file is a path together with its deletion vector. A `remove` must name the vector that the file has in the
log: readers would apply a `remove` without it to another logical file, and keep the rows.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import TableFeatures
from deltalake.schema import Field
from deltalake.transaction import AddAction, RemoveAction

from airflow_provider_pgetl.engine.destinations.delta.types import needs_zoneless


def now() -> int:
    return int(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class VectorReference:
    """Where the deletion vector of a file is stored, as in an action.

    `storage` is ``u`` (a file in the table's folder, named by a UUID), ``p`` (an absolute path) or ``i`` (inline).
    """

    storage: str
    path_or_inline: str
    offset: int | None
    size: int
    cardinality: int

    @classmethod
    def of_action(cls, action: Mapping[str, Any]) -> VectorReference | None:
        found = action.get("deletionVector")
        if found is None:
            return None
        return cls(
            found["storageType"],
            found["pathOrInlineDv"],
            found.get("offset"),
            found["sizeInBytes"],
            found["cardinality"],
        )

    def as_json(self) -> dict[str, Any]:
        offset = {} if self.offset is None else {"offset": self.offset}
        return {
            "storageType": self.storage,
            "pathOrInlineDv": self.path_or_inline,
            **offset,
            "sizeInBytes": self.size,
            "cardinality": self.cardinality,
        }


@dataclass(frozen=True, slots=True)
class Add:
    """`path` is escaped as a URI, as in the log; `modified` is in milliseconds since the epoch of Unix."""

    path: str
    size: int
    stats: str | None
    modified: int = field(default_factory=now, compare=False)
    data_change: bool = True
    vector: VectorReference | None = None
    tags: Mapping[str, str] | None = None

    def as_json(self) -> dict[str, Any]:
        action = {
            "path": self.path,
            "partitionValues": {},
            "size": self.size,
            "modificationTime": self.modified,
            "dataChange": self.data_change,
            "stats": self.stats,
            "tags": self.tags and dict(self.tags),
            "deletionVector": self.vector and self.vector.as_json(),
        }
        return {"add": {name: value for name, value in action.items() if value is not None}}

    def for_library(self) -> AddAction:
        return AddAction(self.path, self.size, {}, self.modified, self.data_change, self.stats or "")


@dataclass(frozen=True, slots=True)
class Remove:
    path: str
    size: int
    data_change: bool = True
    vector: VectorReference | None = None
    deleted: int = field(default_factory=now, compare=False)

    def as_json(self) -> dict[str, Any]:
        action = {
            "path": self.path,
            "deletionTimestamp": self.deleted,
            "dataChange": self.data_change,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": self.size,
            "deletionVector": self.vector and self.vector.as_json(),
        }
        return {"remove": {name: value for name, value in action.items() if value is not None}}

    def for_library(self) -> RemoveAction:
        return RemoveAction(self.path, self.data_change, self.deleted, self.size, {})


Action = Add | Remove


# -- What others may do to a table, and what makes pgetl stop writing to it. Pure functions. ---------------------------
#
# * Harmless: rows that others add, change or delete, also by deletion vectors; files that they rewrite (OPTIMIZE), a
#   vacuum, plain properties, a change data feed. Our commits are made on top of theirs.
# * Carried along: columns that they add (`DeltaShape.layout_in`).
# * `overruling`: a commit replaced the state of the table by another. A copy repairs it.
# * `unfit`: the table now requires of its writers names, values or actions that pgetl does not support. Until this is
#   removed, the table is neither written to nor copied.


def overruling(commit: bytes) -> str | None:
    """Returns the operation of a commit by others if it has replaced the state of the table by another, else None. Rows
    that others have added, changed, deleted or marked as deleted, and files that they have rewritten, do not count."""
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
    """Whether the operation overwrites the whole table."""
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
    """Returns what a table requires that pgetl does not support, as the end of a sentence; None if there is nothing.
    `actions` are those of readers and writers, if the table lists them. A known feature matters only if it is in use.
    An append-only table is not reported here: the commit that removes something fails."""
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
    """Returns the type, or the type within it, that pgetl's files cannot hold; None if they can."""
    if isinstance(kind, str):
        return None if kind in _TYPES or kind.startswith("decimal(") else kind
    inner = [kind.get(part) for part in ("elementType", "keyType", "valueType") if part in kind]
    inner += [one["type"] for one in kind.get("fields", ())]
    return next(filter(None, map(_strange, inner)), None)


# -- Statistics of a file in the log (rows, nulls, bounds), by which readers and our own merges need not open it. ------
#
# Bounds are valid, but not always tight: long strings are cut (the upper bound is then made greater than anything that
# begins with the cut string), and the upper bound of a column with NaN is infinity, because Spark and PostgreSQL sort
# NaN after all other numbers.
#
# Either every column has bounds, or the file has none at all: if a single column lacks them, readers based on Arrow
# take them for null and find no row. So a file with a date or a timestamp that Python cannot represent has no bounds.

Bounds = tuple[Any, Any]
_LONGEST = 32
_COLUMNS = 32
_MILLISECOND = timedelta(milliseconds=1)
# The last code point. As an upper bound it means that there is no upper bound.
_BEYOND = "\U0010ffff"
_SURROGATES, _AFTER_SURROGATES = 0xD800, 0xE000


def indexed_columns(schema: pa.Schema, key: Sequence[str]) -> list[str]:
    """Returns the columns with bounds: those of the key, and the first 32, as other writers do."""
    ordered = [field.name for field in schema if not pa.types.is_nested(field.type) and not _is_bytes(field.type)]
    return [*(name for name in key if name in ordered), *(name for name in ordered[:_COLUMNS] if name not in key)]


def _is_bytes(kind: pa.DataType) -> bool:
    """Whether the type is binary, for which Delta keeps no bounds."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


class Statistics:
    """Statistics from a Parquet file's footer; `strange` are the columns that hold NaN. A bound of None is open."""

    def __init__(self, footer: pq.FileMetaData, columns: Iterable[str], strange: Collection[str]) -> None:
        self.rows = int(footer.num_rows)
        self.nulls: dict[str, int] = {}
        self.bounds: dict[str, Bounds] = {}
        places = {footer.schema.column(at).path: at for at in range(footer.num_columns)}
        try:
            for name in columns:
                self._add(name, footer, places[name], has_nan=name in strange)
        except (_Untold, OverflowError, ValueError):
            self.nulls, self.bounds = {}, {}

    def _add(self, name: str, footer: pq.FileMetaData, place: int, *, has_nan: bool) -> None:
        parts = [footer.row_group(group).column(place).statistics for group in range(footer.num_row_groups)]
        if any(part is None or not part.has_null_count for part in parts):
            raise _Untold
        self.nulls[name] = sum(part.null_count for part in parts)
        filled = [part for part in parts if part.num_values]
        if filled:
            least, most = _bounds_of(filled, footer.schema.column(place))
            self.bounds[name] = least, math.inf if has_nan else most

    def as_json(self) -> str:
        members = {"numRecords": str(self.rows)}
        if self.nulls:
            members["minValues"] = _object({name: _word(_lower(least)) for name, (least, _) in self.bounds.items()})
            members["maxValues"] = _object({name: _word(_upper(most)) for name, (_, most) in self.bounds.items()})
            members["nullCount"] = _object({name: str(nulls) for name, nulls in self.nulls.items()})
        return _object(members)


class _Untold(Exception):
    """The footer lacks the statistics."""


def _bounds_of(parts: Sequence[Any], column: Any) -> Bounds:
    """Returns a column's bounds. Parquet keeps none for strings of several kilobytes, nor for floats that are all NaN,
    for which open bounds are returned."""
    if all(part.has_min_max for part in parts):
        return min(part.min for part in parts), max(part.max for part in parts)
    if column.physical_type == "BYTE_ARRAY" and column.logical_type.type == "STRING":
        return "", None
    if column.physical_type in ("FLOAT", "DOUBLE"):
        return -math.inf, math.inf
    raise _Untold


def _object(members: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{_word(name)}: {word}" for name, word in members.items()) + "}"


def _word(value: Any) -> str:
    """Returns a value as JSON. Decimals are numbers in Delta's statistics, with all their digits. No character is
    escaped unless it must be: delta-rs misreads characters that are written as two escapes."""
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)


def nan_columns(table: pa.Table) -> set[str]:
    """Returns the float columns that hold NaN, which has no place in the order."""
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    return {name for name in floats if pa.compute.any(pa.compute.is_nan(table.column(name))).as_py()}


def _lower(value: Any) -> Any:
    return value[:_LONGEST] if isinstance(value, str) else _plain(value)


def _upper(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else _beyond(value)
    return _BEYOND if value is None else _plain(value)


def _beyond(text: str) -> str:
    """Cuts a text and makes it greater than all texts with that beginning. Not cut if the beginning has only the last
    code point."""
    kept = text[:_LONGEST].rstrip(_BEYOND)
    if not kept:
        return text
    after = ord(kept[-1]) + 1
    return kept[:-1] + chr(_AFTER_SURROGATES if after == _SURROGATES else after)


def _plain(value: Any) -> Any:
    """Returns the value in the form that Delta's statistics use."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return moment.isoformat(timespec="microseconds") + ("" if value.tzinfo is None else "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def merged_bounds(stats: Mapping[str, Any], names: Sequence[str]) -> tuple[Bounds | None, ...]:
    """Returns the bounds of these columns from one file's statistics (`min` and `max` as dicts)."""
    least, most = stats.get("min") or {}, stats.get("max") or {}
    return tuple(_widened(least.get(name), most.get(name)) for name in names)


def _widened(least: Any, most: Any) -> Bounds | None:
    """Returns the bounds, with the upper bound of timestamps raised by a millisecond: other writers truncate timestamps
    to milliseconds, in upper bounds, too."""
    if least is None or most is None:
        return None
    if isinstance(most, str) and most.startswith(_BEYOND):
        return least, None
    try:
        return (least, most + _MILLISECOND) if isinstance(most, datetime) else (least, most)
    except OverflowError:
        return None


# -- The table features in a table's protocol, and how to add those that its columns or its files need. ----------------
#
# A table with an older protocol lists no features: its version implies some. Once it lists features, it must list those
# as well. None of delta-rs' own ways to raise a protocol is exact: adding a feature drops the features that the version
# before implied, and setting a property makes the protocol require `variantType`.

READERS_LISTED, FEATURES_LISTED = 3, 7  # the versions from which a protocol lists features
WITH_FEATURES = {"delta.minWriterVersion": str(FEATURES_LISTED)}
_ALWAYS = (("appendOnly", TableFeatures.AppendOnly), ("invariants", TableFeatures.Invariants))
_SINCE = {
    2: _ALWAYS,
    3: (("checkConstraints", TableFeatures.CheckConstraints),),
    4: (("changeDataFeed", TableFeatures.ChangeDataFeed), ("generatedColumns", TableFeatures.GeneratedColumns)),
}
_COLUMN_MAPPING, _READERS_MAP_COLUMNS = "columnMapping", 2
_VECTORS, _ENABLED = "deletionVectors", "delta.enableDeletionVectors"


def lacking(protocol: Any, fields: Sequence[Field]) -> list[TableFeatures]:
    """Returns the features that a table with these columns must list, but does not. A table that lists features must
    list all of them: also those that its version has implied until now, and those that were left out at its creation,
    without which Spark cannot open the table."""
    known = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    lists = protocol.min_writer_version >= FEATURES_LISTED
    if not lists and not needs_zoneless(fields):
        return []
    wanted = list(_ALWAYS) if lists else _meant_by(protocol.min_writer_version)
    if needs_zoneless(fields):
        wanted.append(("timestampNtz", TableFeatures.TimestampWithoutTimezone))
    return [feature for name, feature in wanted if name not in known]


def _meant_by(writer_version: int) -> list[tuple[str, TableFeatures]]:
    """Returns the features that a version implies which lists none."""
    return [one for since, features in _SINCE.items() if since <= writer_version for one in features]


def properties_of(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = metadata.get("configuration") or {}
    return found


def with_vectors(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the actions that allow the files of a table to have deletion vectors; none if they are allowed already. A
    table that lists no features yet will list those that its version has implied."""
    actions: list[dict[str, Any]] = []
    if _VECTORS not in (protocol.get("writerFeatures") or ()):
        actions.append({"protocol": _raised(protocol)})
    if str(properties_of(metadata).get(_ENABLED, "")).lower() != "true":
        configuration = {**properties_of(metadata), _ENABLED: "true"}
        actions.append({"metaData": {**metadata, "configuration": configuration}})
    return actions


def _raised(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the protocol with deletion vectors added. A reader version without a list of features implies column
    mapping, if it is version 2."""
    maps_columns = protocol["minReaderVersion"] == _READERS_MAP_COLUMNS
    readers = protocol.get("readerFeatures") or ([_COLUMN_MAPPING] if maps_columns else [])
    writers = protocol.get("writerFeatures")
    if writers is None:
        writers = [name for name, _ in _meant_by(protocol["minWriterVersion"])]
    writers = [*writers, *(name for name in readers if name not in writers)]
    return {
        "minReaderVersion": READERS_LISTED,
        "minWriterVersion": FEATURES_LISTED,
        "readerFeatures": [*readers, _VECTORS],
        "writerFeatures": [*writers, _VECTORS],
    }
