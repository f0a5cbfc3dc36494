"""Changes as the source would send them, without a source: an encoder of pgoutput's row messages.

Values are the bytes of a type's text form (or of its binary form, with ``kind=b"b"``), None for NULL, and `ABSENT` for
a large value that an update did not touch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from airflow_provider_pgetl.engine.changes.rows import WireRows, wire_rows
from airflow_provider_pgetl.engine.tables import TableSchema


class Absent(Enum):
    """The value that the source did not send again."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT
Value = bytes | None | Absent
Row = Sequence[Value]


@dataclass
class Wire:
    """Collects one table's changes, in the order of the calls, as the messages of one transaction after another."""

    schema: TableSchema
    kind: bytes = b"t"
    _messages: list[bytes] = field(default_factory=list)

    def insert(self, new: Row) -> Wire:
        return self._add(b"I", b"N" + self._tuple(new))

    def update(self, new: Row, old: Row | None = None) -> Wire:
        """`old` is the row as it was; sent whole under replica identity full, else its key where that changes."""
        return self._add(b"U", self._before(old, new) + b"N" + self._tuple(new))

    def delete(self, old: Row) -> Wire:
        return self._add(b"D", self._identity(old))

    def __len__(self) -> int:
        return len(self._messages)

    def take(self, commit_lsn: int = 1) -> WireRows:
        """What was collected, as one transaction; the next one starts empty."""
        messages, self._messages = self._messages, []
        return wire_rows(self.schema, messages, [(0, commit_lsn, 0)], range(1, len(messages) + 1))

    def _before(self, old: Row | None, new: Row) -> bytes:
        if old is None:
            return b""
        moved = any(old[index] != new[index] for index in self.schema.key_indexes)
        return self._identity(old) if moved or self.schema.identity == "full" else b""

    def _identity(self, old: Row) -> bytes:
        if self.schema.identity == "full":
            return b"O" + self._tuple(old)
        keys = self.schema.key_indexes
        return b"K" + self._tuple([value if index in keys else None for index, value in enumerate(old)])

    def _tuple(self, row: Row) -> bytes:
        return struct.pack("!h", len(row)) + b"".join(map(self._column, row))

    def _column(self, value: Value) -> bytes:
        if value is None:
            return b"n"
        if isinstance(value, Absent):
            return b"u"
        return self.kind + struct.pack("!i", len(value)) + value

    def _add(self, operation: bytes, payload: bytes) -> Wire:
        header = b"w" + struct.pack("!qqq", 0, 0, 0)
        self._messages.append(header + operation + struct.pack("!I", self.schema.relation) + payload)
        return self
