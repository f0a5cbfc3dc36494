"""The live files of a table, updated from commit to commit.

delta-rs returns a file's path, size and bounds, but not its deletion vector, and it walks all files for each answer. So
the log is read here: once from its last checkpoint on, then each new commit. The changes of pgetl's own commits are
applied without reading these.

A snapshot also has the table's latest `metaData` and `protocol` actions as they are in the log, for commits that must
repeat them with a modification.

A snapshot does not decide whether the table may be written to, or which version is the newest: `TableLog` does, through
delta-rs.
"""

from __future__ import annotations

import json
import re
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import cached_property
from itertools import chain
from math import isfinite
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_pgetl.engine.destinations.delta.log.actions import (
    Action,
    Add,
    Bounds,
    Remove,
    VectorReference,
    merged_bounds,
)
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError

_LOG = "_delta_log"
_CHECKPOINT = re.compile(
    r"_delta_log/(\d{20})\.checkpoint\.(?:parquet|\d{10}\.\d{10}\.parquet|[0-9a-f-]+\.(?:parquet|json))"
)
_PARTS = re.compile(r"\.checkpoint\.\d{10}\.(\d{10})\.parquet$")
_COLUMNS = ("add", "metaData", "protocol", "sidecar")
_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class LiveFile:
    """A file of the snapshot. `packed` are its statistics from the log, compressed, as tables may have many files."""

    path: str
    size: int
    packed: bytes = b""
    modified: int = 0
    vector: VectorReference | None = None
    tags: Mapping[str, str] | None = None

    @classmethod
    def of(cls, add: Add) -> LiveFile:
        packed = zlib.compress(add.stats.encode(), 1) if add.stats else b""
        return cls(add.path, add.size, packed, add.modified, add.vector, add.tags)

    @property
    def location(self) -> str:
        """The file's path below the table's folder, without the escapes of the log."""
        return unquote(self.path)

    @property
    def stats(self) -> str | None:
        return zlib.decompress(self.packed).decode() if self.packed else None

    @cached_property
    def rows(self) -> int | None:
        """The number of rows in the file, including deleted ones; None if the log does not have it."""
        found = self._statistics(float).get("numRecords")
        return None if found is None else int(found)

    @property
    def deleted(self) -> int:
        return 0 if self.vector is None else self.vector.cardinality

    def bounds(self, fields: Sequence[pa.Field]) -> tuple[Bounds | None, ...]:
        """Returns the bounds of these columns; None if the log has none, so that any value may be in the file."""
        names = tuple(one.name for one in fields)
        if self._bounds.get("names") != names:
            said = self._statistics(Decimal)
            least, most = (_typed(said.get(which) or {}, fields) for which in ("minValues", "maxValues"))
            self._bounds.update({"names": names, "bounds": merged_bounds({"min": least, "max": most}, names)})
        found: tuple[Bounds | None, ...] = self._bounds["bounds"]
        return found

    @cached_property
    def _bounds(self) -> dict[str, Any]:
        """Caches the last result of `bounds`, because every batch asks for the same columns."""
        return {}

    def _statistics(self, number: type[float] | type[Decimal]) -> Mapping[str, Any]:
        return _object(self.stats or "", parse_float=number)

    def remove(self, *, data_change: bool = True) -> Remove:
        return Remove(self.path, self.size, data_change, self.vector)

    def marked(self, vector: VectorReference, rows: int) -> Add:
        """Returns the same file with another deletion vector. Its bounds are still valid, but may not be tight any
        more. The number of rows is always given, because some readers require it."""
        return Add(self.path, self.size, loosened_stats(self.stats, rows), self.modified, vector=vector, tags=self.tags)


def loosened_stats(stats: str | None, rows: int) -> str:
    """Returns the statistics with `tightBounds` false and with the number of rows. Numbers keep all their digits."""
    verbatim = uuid.uuid4().hex
    known = _object(stats or "", parse_float=verbatim.__add__)
    told = {**known, "numRecords": rows if known.get("numRecords") is None else known["numRecords"]}
    return re.sub(f'"{verbatim}([^"]*)"', r"\1", json.dumps({**told, "tightBounds": False}))


def _object(text: str, parse_float: Callable[[str], Any]) -> dict[str, Any]:
    """Parses a JSON object; returns an empty one if the text is none."""
    try:
        found = json.loads(text, parse_float=parse_float)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _typed(values: Mapping[str, Any], fields: Iterable[pa.Field]) -> dict[str, Any]:
    return {one.name: _value(values.get(one.name), one.type) for one in fields}


def _value(value: Any, kind: pa.DataType) -> Any:
    """Converts a bound to a Python value; None if it cannot be read."""
    try:
        if value is None:
            return None
        if pa.types.is_timestamp(kind):
            moment = datetime.fromisoformat(value)
            return moment if kind.tz is None else moment.astimezone(UTC)
        if pa.types.is_date(kind):
            return date.fromisoformat(value)
        if pa.types.is_decimal(kind):
            return Decimal(value)
        if pa.types.is_floating(kind):
            return float(value)
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
            return value if isinstance(value, (bool, int)) else None
        return value if isinstance(value, str) and not pa.types.is_binary(kind) else None
    except (ValueError, TypeError, InvalidOperation, OverflowError):
        return None


@dataclass
class Snapshot:
    """The table at one version. `files` are by path."""

    version: int
    files: dict[str, LiveFile]
    metadata: Mapping[str, Any]
    protocol: Mapping[str, Any]

    @classmethod
    def load(cls, place: TableFolder, version: int) -> Snapshot:
        """Reads the log up to the version."""
        checkpoint, parts = _last_checkpoint(place, version)
        snapshot = cls(-1 if checkpoint is None else checkpoint, {}, {}, {})
        for action in _checkpointed(place, parts):
            snapshot.take(action)
        if not snapshot.advance(place, version):
            message = f"The log of the Delta table at {place.uri} cannot be read: commits before {version} are missing."
            raise PgetlError(ErrorKind.DAMAGED, message)
        return snapshot

    def advance(self, place: TableFolder, version: int) -> bool:
        """Reads the commits up to the version. Returns False if one of them is missing; the snapshot is then at the
        version before it."""
        while self.version < version:
            commit = place.read_if_there(f"{_LOG}/{self.version + 1:020}.json")
            if commit is None:
                return False
            # Removes first: one commit may remove a file and add it with another deletion vector, in any order.
            actions = [json.loads(line) for line in commit.splitlines() if line.strip()]
            for action in sorted(actions, key=lambda one: "add" in one):
                self.take(action)
            self.version += 1
        return True

    def apply(self, actions: Sequence[Action]) -> None:
        """Advances to the next version, a commit of these actions."""
        for action in sorted(actions, key=lambda one: isinstance(one, Add)):
            if isinstance(action, Add):
                self.files[action.path] = LiveFile.of(action)
            else:
                self._remove(action.path, action.vector)
        self.version += 1

    def _remove(self, path: str, vector: VectorReference | None) -> None:
        """Removes a logical file. A file with another deletion vector is another logical file, and stays."""
        known = self.files.get(path)
        if known is not None and known.vector == vector:
            del self.files[path]

    def take(self, action: Mapping[str, Any]) -> None:
        if add := action.get("add"):
            self.files[add["path"]] = LiveFile.of(_add_of(add))
        elif remove := action.get("remove"):
            self._remove(remove["path"], VectorReference.of_action(remove))
        elif found := action.get("metaData"):
            self.metadata = _cleaned(found)
        elif found := action.get("protocol"):
            self.protocol = _cleaned(found)


def _add_of(action: Mapping[str, Any]) -> Add:
    parsed, tags = action.get("stats_parsed"), action.get("tags")
    stats = action.get("stats") or (None if parsed is None else json.dumps(_unparsed(parsed)))
    add = Add(action["path"], action["size"], stats, action["modificationTime"])
    return replace(add, vector=VectorReference.of_action(action), tags=dict(tags) if tags else None)


def _unparsed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts typed statistics to the values of the JSON form. Nulls, and values that JSON cannot represent exactly,
    are left out."""
    said = {name: _json_value(value) for name, value in values.items()}
    return {name: value for name, value in said.items() if value is not None}


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _unparsed(value)
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else "Z"
        return (value if value.tzinfo is None else value.astimezone(UTC)).strftime("%Y-%m-%dT%H:%M:%S.%f") + zone
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not isfinite(value):
        return None
    return value if isinstance(value, str | int | float) else None


def _cleaned(action: Mapping[str, Any]) -> dict[str, Any]:
    """Converts an action to the form it has in a commit. In a checkpoint, maps are pairs, and there are fields without
    a value."""
    found = {name: value for name, value in action.items() if value is not None}
    if "configuration" in found:
        found["configuration"] = dict(found["configuration"])
    if "format" in found:
        found["format"] = {"provider": found["format"]["provider"], "options": dict(found["format"]["options"] or {})}
    return found


def _last_checkpoint(place: TableFolder, version: int) -> tuple[int | None, list[str]]:
    """Returns the last complete checkpoint up to the version, and its files."""
    found: dict[tuple[int, str], list[str]] = {}
    for path in place.list(_LOG):
        match = _CHECKPOINT.fullmatch(path)
        if match and int(match[1]) <= version:
            parts = _PARTS.search(path)
            found.setdefault((int(match[1]), parts[1] if parts else path), []).append(path)
    for (at, of), paths in sorted(found.items(), reverse=True):
        if not of.isdecimal() or len(paths) == int(of):
            return at, sorted(paths)
    return None, []


def vectors_named(place: TableFolder, version: int, since: int) -> set[VectorReference]:
    """Returns the vectors that files have, or had when they were removed at `since` (in milliseconds) or later."""
    found: set[VectorReference] = set()
    checkpoint, parts = _last_checkpoint(place, version)
    commits = (place.read_if_there(f"{_LOG}/{at:020}.json") for at in range((checkpoint or 0), version + 1))
    said = (json.loads(line) for commit in commits for line in (commit or b"").splitlines() if line.strip())
    for action in chain(_checkpointed(place, parts, ("add", "remove", "sidecar")), said):
        one = action.get("add") or action.get("remove") or {}
        vector = VectorReference.of_action(one)
        gone = one.get("deletionTimestamp")
        if vector is not None and (gone is None or gone >= since):
            found.add(vector)
    return found


def _checkpointed(
    place: TableFolder, paths: Iterable[str], kinds: Sequence[str] = _COLUMNS
) -> Iterator[Mapping[str, Any]]:
    """Yields the actions of these kinds in a checkpoint, including those in its sidecar files."""
    for path in paths:
        for action in _actions_in(place, path, kinds):
            if sidecar := action.get("sidecar"):
                name = unquote(sidecar["path"])
                yield from _actions_in(place, name if "/" in name else f"{_LOG}/_sidecars/{name}", kinds)
            else:
                yield action


def _actions_in(place: TableFolder, path: str, kinds: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    if path.endswith(".json"):
        yield from (json.loads(line) for line in place.read(path).splitlines() if line.strip())
        return
    with place.errors(path), place.files.open_input_file(path) as source, pq.ParquetFile(source) as file:
        there = set(file.schema_arrow.names)
        columns = [name for name in kinds if name in there]
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=_without_parsed(file, columns)):
            for row in batch.to_pylist():
                yield from ({name: action} for name, action in row.items() if action is not None)


def _without_parsed(file: pq.ParquetFile, columns: Sequence[str]) -> list[str]:
    """Returns the columns to read. Typed statistics are left out if there are statistics as JSON, as is usual."""
    paths = [file.schema.column(at).path for at in range(len(file.schema))]
    unread = ("add.partitionValues_parsed", *(("add.stats_parsed",) if "add.stats" in paths else ()))
    return [path for path in paths if path.partition(".")[0] in columns and not path.startswith(unread)]
