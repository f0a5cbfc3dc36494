"""What a commit says of files: the `add` and `remove` actions of the Delta protocol, and deletion vectors in them.

delta-rs takes adds and removes, but knows no deletion vector in either. A commit in which one occurs is therefore
written by `TableLog` itself, from `as_json`; any other is handed to delta-rs as `for_library`.

A logical file is a path together with its deletion vector. A `remove` must name the vector that the file has in the
log: readers would take a `remove` without it for another logical file's, and keep the rows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deltalake.transaction import AddAction, RemoveAction


def now() -> int:
    return int(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class VectorReference:
    """Where the deletion vector of a file is, as an action has it.

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
    """`path` is escaped as a URI, as the log has it; `modified` is in milliseconds."""

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
