"""A table at a source that never was: what it holds, and its changes as pgoutput would send them."""

from __future__ import annotations

import random
import struct
from collections import Counter
from dataclasses import dataclass, field

from airflow_provider_pgetl.engine.changes.batch import Step, Truncate
from airflow_provider_pgetl.engine.model.positions import CommitLsn
from airflow_provider_pgetl.engine.model.tables import Column, Identity, PgType, TableName, TableSchema
from airflow_provider_pgetl.testing import ABSENT, Wire

INT4 = PgType(23, "integer")
TEXT = PgType(25, "text")
Row = tuple[int, str, int | None, str | None, str | None]


def schema_of(key: tuple[str, ...], identity: Identity = "default", name: str = "t") -> TableSchema:
    """Two columns fit for keys, two others, and one that is left out when an update does not touch it."""
    columns = (
        Column("k", INT4, "integer", not_null=True),
        Column("K two", TEXT, "text", not_null=True),
        Column("number", INT4, "integer"),
        Column("small", TEXT, "text"),
        Column("big", TEXT, "text"),
    )
    return TableSchema(TableName("public", name), 7, columns, key, identity)


@dataclass
class Source:
    """Random changes. Few keys are reused, moved, swapped and chained; among many, many rows move at once."""

    schema: TableSchema
    choose: random.Random
    kind: bytes = b"t"
    keys: int = 4
    rows: list[Row] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._wire = Wire(self.schema, self.kind)

    @property
    def held(self) -> Counter[Row]:
        return Counter(self.rows)

    def live(self, changes: int, truncates: float = 0.02, cuts: float = 0.1) -> list[Step]:
        """That many changes, cut into steps."""
        for number in range(changes):
            if self.choose.random() < truncates:
                self._truncate()
            elif self.rows and self.choose.random() < 0.7:
                self._touch(number)
            else:
                self._insert(self._fresh(number))
            if self.choose.random() < cuts:
                self._cut()
        self._cut()
        steps, self.steps = self.steps, []
        return steps

    def _fresh(self, number: int) -> Row:
        optional = [None, "", f"v{number}", 'it\'s\t\\ \n"odd" ü']
        return (
            self.choose.randrange(self.keys),
            self.choose.choice(["a", "B'\\"]),
            self.choose.choice([None, -1, number]),
            self.choose.choice(optional),
            self.choose.choice(optional),
        )

    def _insert(self, row: Row) -> None:
        if self._free(row):
            self.rows.append(row)
            self._wire.insert(self._sent(row))

    def _touch(self, number: int) -> None:
        old = self.rows.pop(self.choose.randrange(len(self.rows)))
        if self.choose.random() < 0.25:
            self._wire.delete(self._sent(old))
            return
        new = self._changed(old, self._fresh(number))
        self.rows.append(new)
        sent = list(self._sent(new))
        if new[4] == old[4] and new[4] is not None:
            sent[4] = ABSENT
        self._wire.update(sent, old=self._sent(old))

    def _changed(self, old: Row, fresh: Row) -> Row:
        big = old[4] if self.choose.random() < 0.6 else fresh[4]
        moved = (*fresh[:4], big)
        return moved if self.choose.random() < 0.5 and self._free(moved) else (*old[:2], *fresh[2:4], big)

    def _truncate(self) -> None:
        self._cut()
        self.rows.clear()
        self.steps.append(Truncate(self.schema, CommitLsn(1), 1))

    def _cut(self) -> None:
        if len(self._wire):
            self.steps.append(self._wire.take())

    def _free(self, row: Row) -> bool:
        keys = self.schema.key_indexes
        return not keys or all(any(known[at] != row[at] for at in keys) for known in self.rows)

    def _sent(self, row: Row) -> list[bytes | None]:
        return [self._encoded(value) for value in row]

    def _encoded(self, value: int | str | None) -> bytes | None:
        if value is None:
            return None
        if isinstance(value, int):
            return struct.pack("!i", value) if self.kind == b"b" else b"%d" % value
        return value.encode()
