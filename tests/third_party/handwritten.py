"""Delta tables with deletion vectors, written action by action: as any writer may write them, also the rare ways.

    table = Handwritten.create(tmp_path / "t", {"id": range(1000)})
    table.delete({table.paths[0]: {3, 7}})

A deletion vector names rows of one data file by their positions. A file of vectors is a byte (version 1), and then for
each vector, at its offset: its size (4 bytes, big endian), its data, and their CRC-32 (4 bytes, big endian). The data
are a magic number (4 bytes, little endian) and the positions as a 64-bit Roaring bitmap in the portable format.
"""

from __future__ import annotations

import json
import struct
import time
import uuid
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

Action = dict[str, Any]
MAGIC = 1_681_511_377
WRITER_FEATURES = ("deletionVectors", "invariants", "appendOnly")
READER_FEATURES = ("deletionVectors",)
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_ENCODED_UUID = 20


# -- vectors


def encode(positions: Iterable[int]) -> bytes:
    bitmap = BitMap64(positions)
    bitmap.run_optimize()
    return struct.pack("<i", MAGIC) + bitmap.serialize()


def decode(data: bytes) -> set[int]:
    (magic,) = struct.unpack_from("<i", data)
    assert magic == MAGIC, f"{magic} is no format that is known"
    return set(BitMap64.deserialize(data[4:]))


def to_z85(data: bytes) -> str:
    """Padded with zeros to whole groups of four bytes."""
    padded = data + bytes(-len(data) % 4)
    text = bytearray()
    for (number,) in struct.iter_unpack(">I", padded):
        text += bytes(_Z85[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text.decode()


def from_z85(text: str) -> bytes:
    data = bytearray()
    for at in range(0, len(text), 5):
        number = 0
        for letter in text[at : at + 5].encode():
            number = number * 85 + _Z85.index(letter)
        data += struct.pack(">I", number)
    return bytes(data)


def vector_file(encoded: str) -> str:
    """The path that `pathOrInlineDv` of storage type `u` means, from the table's folder on."""
    prefix, name = encoded[:-_ENCODED_UUID], uuid.UUID(bytes=from_z85(encoded[-_ENCODED_UUID:]))
    return f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"


def read_vector(table: Path, vector: Mapping[str, Any]) -> set[int]:
    """The positions that a `deletionVector` of the log names; its sum and its count are checked."""
    if vector["storageType"] == "i":
        data = from_z85(vector["pathOrInlineDv"])[: vector["sizeInBytes"]]
    else:
        named = vector["pathOrInlineDv"]
        file = table / vector_file(named) if vector["storageType"] == "u" else Path(named.removeprefix("file://"))
        content, at, size = file.read_bytes(), vector["offset"] or 0, vector["sizeInBytes"]
        data = content[at + 4 : at + 4 + size]
        assert content[0] == 1, "the version"
        assert struct.unpack_from(">i", content, at) == (size,)
        assert struct.unpack_from(">I", content, at + 4 + size) == (zlib.crc32(data),)
    found = decode(data)
    assert len(found) == vector["cardinality"]
    return found


def write_vectors(table: Path, vectors: Sequence[Collection[int]], *, prefix: str = "") -> list[Action]:
    """All of them into one file; what the log says of each."""
    name, content, said = uuid.uuid4(), bytearray(b"\x01"), []
    encoded = prefix + to_z85(name.bytes)
    for positions in vectors:
        data = encode(positions)
        said.append(_descriptor("u", encoded, len(content), data, positions))
        content += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    file = table / vector_file(encoded)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    return said


def inline_vector(positions: Collection[int]) -> Action:
    data = encode(positions)
    return _descriptor("i", to_z85(data), None, data, positions)


def _descriptor(kind: str, named: str, offset: int | None, data: bytes, positions: Collection[int]) -> Action:
    said = {"storageType": kind, "pathOrInlineDv": named, "offset": offset, "sizeInBytes": len(data)}
    return {name: value for name, value in said.items() if value is not None} | {"cardinality": len(positions)}


# -- tables


@dataclass
class Handwritten:
    """A table without partitions. `live`: each file's add action, by path."""

    path: Path
    version: int = -1
    live: dict[str, Action] = field(default_factory=dict)
    first: list[Action] = field(default_factory=list)
    """The table's protocol and metadata."""

    @classmethod
    def create(
        cls,
        path: Path,
        columns: Mapping[str, Sequence[Any]],
        *more: Mapping[str, Sequence[Any]],
        readers: Sequence[str] = READER_FEATURES,
        writers: Sequence[str] = WRITER_FEATURES,
        properties: Mapping[str, str] | None = None,
    ) -> Handwritten:
        """With a file of each group of columns."""
        table = cls(path)
        (path / "_delta_log").mkdir(parents=True)
        tables = [pa.table(dict(one)) for one in (columns, *more)]
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
        table.first = [
            {"protocol": protocol | {"readerFeatures": list(readers), "writerFeatures": list(writers)}},
            {"metaData": _metadata(tables[0].schema, properties or {})},
        ]
        table.commit(*table.first, *(table.write(one) for one in tables))
        return table

    @classmethod
    def open(cls, path: Path) -> Handwritten:
        """A table that somebody else writes; all of its commits are there."""
        table = cls(path)
        for file in sorted((path / "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in file.read_text().splitlines() if line]
            table.version = int(file.stem)
            table.first = [one for one in actions if "protocol" in one or "metaData" in one] or table.first
            table._follow(actions)
        return table

    @property
    def paths(self) -> list[str]:
        return list(self.live)

    def write(self, rows: pa.Table | Mapping[str, Sequence[Any]]) -> Action:
        """A new data file; the action that adds it."""
        rows = rows if isinstance(rows, pa.Table) else pa.table(dict(rows))
        path = f"part-{uuid.uuid4().hex}.parquet"
        pq.write_table(rows, self.path / path)
        return {
            "add": {
                "path": path,
                "partitionValues": {},
                "size": (self.path / path).stat().st_size,
                "modificationTime": now(),
                "dataChange": True,
                "stats": json.dumps(_stats(rows)),
            }
        }

    def delete(self, rows: Mapping[str, Collection[int]], *more: Action) -> None:
        """One commit, with one file of all vectors: of each path also the rows of these positions are deleted."""
        before = {path: self.deleted(path) for path in rows}
        vectors = write_vectors(self.path, [before[path] | set(rows[path]) for path in rows])
        marked = [self.marked(path, vector) for path, vector in zip(rows, vectors, strict=True)]
        self.commit(*(action for actions in marked for action in actions), *more, operation="DELETE")

    def delete_where(self, column: str, values: Collection[Any], *more: Action) -> None:
        """The rows that have one of the values in the column."""
        found = {}
        for path in self.paths:
            held = pq.read_table(self.path / path, columns=[column])[column].to_pylist()
            rows = {at for at, value in enumerate(held) if value in values} - self.deleted(path)
            if rows:
                found[path] = rows
        self.delete(found, *more)

    def deleted(self, path: str) -> set[int]:
        vector = self.live[path].get("deletionVector")
        return set() if vector is None else read_vector(self.path, vector)

    def marked(self, path: str, vector: Action) -> list[Action]:
        """The file with this vector, in the place of the same with what it had."""
        before = self.live[path]
        stats = json.dumps({**json.loads(before["stats"]), "tightBounds": False})
        return [self.removed(path), {"add": {**before, "stats": stats, "deletionVector": vector}}]

    def removed(self, path: str) -> Action:
        before = self.live[path]
        kept = {name: before[name] for name in ("partitionValues", "size", "deletionVector") if name in before}
        about = {"deletionTimestamp": now(), "dataChange": True, "extendedFileMetadata": True}
        return {"remove": {"path": path, **about, **kept}}

    def commit(self, *actions: Action, operation: str = "WRITE") -> None:
        self.version += 1
        info = {"commitInfo": {"timestamp": now(), "operation": operation, "operationParameters": {}}}
        lines = "\n".join(map(json.dumps, [info, *actions]))
        with (self.path / "_delta_log" / f"{self.version:020}.json").open("x") as file:
            file.write(f"{lines}\n")
        self._follow(actions)

    def _follow(self, actions: Sequence[Action]) -> None:
        added = {action["add"]["path"]: action["add"] for action in actions if "add" in action}
        for path in {action["remove"]["path"] for action in actions if "remove" in action} - added.keys():
            self.live.pop(path)
        self.live |= added

    def checkpoint(self) -> Path:
        """Of the newest version, with the columns alone that are needed; and no commit is left but those after it."""
        log = self.path / "_delta_log"
        rows = [*self.first, *({"add": {**add, "dataChange": False}} for add in self.live.values())]
        file = log / f"{self.version:020}.checkpoint.parquet"
        pq.write_table(pa.Table.from_pylist(list(map(_as_rows, rows)), schema=CHECKPOINT), file)
        (log / "_last_checkpoint").write_text(json.dumps({"version": self.version, "size": len(rows)}))
        for version in range(self.version):
            (log / f"{version:020}.json").unlink(missing_ok=True)
        return file


def now() -> int:
    return int(time.time() * 1000)


_TYPES = {"int64": "long", "int32": "integer", "string": "string", "timestamp[us, tz=UTC]": "timestamp"}
_TYPES |= {"timestamp[us]": "timestamp_ntz", "double": "double", "bool": "boolean", "date32[day]": "date"}


def _metadata(schema: pa.Schema, properties: Mapping[str, str]) -> Action:
    fields = [{"name": one.name, "type": _TYPES[str(one.type)], "nullable": True, "metadata": {}} for one in schema]
    return {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": dict(properties),
        "createdTime": now(),
    }


def _stats(rows: pa.Table) -> dict[str, Any]:
    """Bounds of numbers and texts."""
    bounded = [one for one in rows.schema if str(one.type) in ("int64", "int32", "string") and rows.num_rows]
    bounds = {one.name: pc.min_max(rows[one.name]).as_py() for one in bounded}
    return {
        "numRecords": rows.num_rows,
        "minValues": {name: found["min"] for name, found in bounds.items() if found["min"] is not None},
        "maxValues": {name: found["max"] for name, found in bounds.items() if found["max"] is not None},
        "nullCount": {name: rows[name].null_count for name in rows.column_names},
        "tightBounds": True,
    }


def _as_rows(action: Action) -> dict[str, Any]:
    """Maps as pyarrow takes them."""
    return {
        kind: {name: list(value.items()) if name in _MAPS else value for name, value in said.items()}
        for kind, said in action.items()
    }


_MAPS = {"partitionValues", "configuration"}
_TEXTS = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    [
        pa.field("storageType", pa.string(), nullable=False),
        pa.field("pathOrInlineDv", pa.string(), nullable=False),
        pa.field("offset", pa.int32()),
        pa.field("sizeInBytes", pa.int32(), nullable=False),
        pa.field("cardinality", pa.int64(), nullable=False),
    ]
)
CHECKPOINT = pa.schema(
    {
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "deletionVector": _VECTOR,
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _TEXTS,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": pa.list_(pa.string()),
                "writerFeatures": pa.list_(pa.string()),
            }
        ),
    }
)
