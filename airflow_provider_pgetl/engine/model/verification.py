"""The results of a verification: plain data, as JSON and as text for a log.

A result says up to which position of the source it holds. A row that differs is kept with its evidence: its values on
both sides, and the positions at which both sides were read. Values are readable texts, of limited length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, parse_table, written

Verdict = Literal["equal", "different", "not compared"]
Kind = Literal["missing", "extra", "changed"]
Row = Mapping[str, str]

NULL = "NULL"

EVIDENCE_ROWS = 20
EVIDENCE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not the same on both sides. `key`: the values that identify it; for a table without a key, all
    values. `columns`: the columns that differ, with the source's value and the destination's; empty for a row that is
    on one side only. `source`, `destination`: all values of the row on that side; None where it does not exist.
    `position`, `destination_position`: where the two sides were when the row was compared; every change of the row
    before the latter is in the destination, and none lies between the two."""

    kind: Kind
    key: Row
    columns: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    source: Row | None = None
    destination: Row | None = None
    position: Boundary | None = None
    destination_position: Boundary | None = None

    def as_json(self) -> dict[str, Any]:
        columns = {name: {"source": here, "destination": there} for name, (here, there) in self.columns.items()}
        return {
            "kind": self.kind,
            "key": dict(self.key),
            "columns": columns,
            "source": None if self.source is None else dict(self.source),
            "destination": None if self.destination is None else dict(self.destination),
            "position": _lsn(self.position),
            "destination_position": _lsn(self.destination_position),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Difference:
        columns = {name: (both["source"], both["destination"]) for name, both in data["columns"].items()}
        positions = (_boundary(data["position"]), _boundary(data["destination_position"]))
        return cls(data["kind"], data["key"], columns, data["source"], data["destination"], *positions)


@dataclass(frozen=True, slots=True)
class TableVerified:
    """The result for one table. `position`: every change at the source before it was to be in the destination; `at`:
    when the source was there, in seconds since the Unix epoch. `rows`: the number of rows compared. `differences`: the
    first of the rows that `missing`, `extra` and `changed` count. `skipped`: the number of rows that were not compared,
    with the reason in `why`; with the verdict "not compared", `why` applies to the whole table. `left_out`: the columns
    that were not compared, because the destination does not have their values. `generation`: that of the copy which was
    compared; `share`: the share of its keys."""

    table: TableName
    verdict: Verdict
    position: Boundary | None = None
    at: float | None = None
    rows: int = 0
    missing: int = 0
    extra: int = 0
    changed: int = 0
    differences: Sequence[Difference] = ()
    skipped: int = 0
    why: str | None = None
    remedy: str | None = None
    rounds: int = 0
    keyless: bool = False
    left_out: tuple[str, ...] = ()
    generation: int = 0
    share: float = 1.0

    @classmethod
    def never(cls, table: TableName) -> TableVerified:
        """Returns the result for a table of which the store has no result."""
        return cls(table, "not compared", why="it was never verified.", remedy="`pgetl verify FILE` does that.")

    @property
    def different(self) -> int:
        return self.missing + self.extra + self.changed

    def as_json(self, *, with_rows: bool = True) -> dict[str, Any]:
        """`with_rows`: include the values of rows that differ."""
        return {
            "table": written(self.table),
            "verdict": self.verdict,
            "position": _lsn(self.position),
            "at": self.at,
            "rows": self.rows,
            "missing": self.missing,
            "extra": self.extra,
            "changed": self.changed,
            **({"differences": [one.as_json() for one in self.differences]} if with_rows else {}),
            "skipped": self.skipped,
            "why": self.why,
            "remedy": self.remedy,
            "rounds": self.rounds,
            "keyless": self.keyless,
            "left_out": list(self.left_out),
            "generation": self.generation,
            "share": self.share,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableVerified:
        differences = tuple(map(Difference.from_json, data.get("differences", ())))
        found = {**data, "table": parse_table(data["table"]), "position": _boundary(data["position"])}
        return cls(**{**found, "left_out": tuple(data["left_out"]), "differences": differences})

    def in_words(self) -> str:
        """Returns one line, without the rows."""
        if self.verdict == "not compared":
            return f"{written(self.table)} was not compared: {self.why}"
        found = "equal" if self.verdict == "equal" else f"DIFFERENT ({self._counts()})"
        words = f"{written(self.table)}: {found} up to {self.position}, at {_moment(self.at)}, {self.rows:,} rows"
        if self.left_out:
            words = f"{words}, without the columns {', '.join(self.left_out)}"
        return f"{words}; {self.skipped:,} rows were not compared: {self.why}" if self.skipped else f"{words}."

    def _counts(self) -> str:
        counts = {"missing": self.missing, "extra": self.extra, "changed": self.changed}
        return ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)


def bounded(found: TableVerified) -> TableVerified:
    """Returns the result with as many of its differences as are stored: `EVIDENCE_ROWS`, or fewer if their values take
    more than `EVIDENCE_BYTES`."""
    kept: list[Difference] = []
    left = EVIDENCE_BYTES
    for one in found.differences[:EVIDENCE_ROWS]:
        left -= len(json.dumps(one.as_json()))
        if left < 0:
            break
        kept.append(one)
    return replace(found, differences=tuple(kept))


@dataclass(frozen=True, slots=True)
class Verified:
    """The result for all tables. `share`: the share of each table's keys that was compared. `before`: of results that
    were read from the store, the older ones in which rows differed, newest first."""

    tables: Sequence[TableVerified]
    share: float = 1.0
    repaired: Sequence[TableName] = ()
    before: Sequence[TableVerified] = ()

    @property
    def different(self) -> list[TableVerified]:
        return [one for one in self.tables if one.verdict == "different"]

    @property
    def not_compared(self) -> list[TableVerified]:
        return [one for one in self.tables if one.verdict == "not compared"]

    @property
    def is_proven(self) -> bool:
        """Whether every table was compared and no table differs."""
        return all(one.verdict == "equal" for one in self.tables)

    def as_json(self, *, with_rows: bool = True) -> dict[str, Any]:
        return {
            "equal": self.is_proven,
            "share": self.share,
            "tables": [one.as_json(with_rows=with_rows) for one in self.tables],
            "repaired": [written(table) for table in self.repaired],
            "before": [one.as_json(with_rows=with_rows) for one in self.before],
        }


def _lsn(boundary: Boundary | None) -> str | None:
    return None if boundary is None else str(boundary)


def _boundary(text: str | None) -> Boundary | None:
    return None if text is None else Boundary.parse(text)


def _moment(seconds: float | None) -> str:
    return datetime.fromtimestamp(seconds or 0.0, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
