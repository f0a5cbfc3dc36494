"""The results of a verification: plain data, as JSON and as text for a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, written

Verdict = Literal["equal", "different", "not compared"]
Kind = Literal["missing", "extra", "changed"]

NULL = "NULL"


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not the same on both sides. `key`: the values that identify it; for a table without a key, all
    values. `columns`: the columns that differ, with the source's value and the destination's; empty for a row that is
    on one side only."""

    kind: Kind
    key: Mapping[str, str]
    columns: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        columns = {name: {"source": here, "destination": there} for name, (here, there) in self.columns.items()}
        return {"kind": self.kind, "key": dict(self.key), "columns": columns}


@dataclass(frozen=True, slots=True)
class TableVerified:
    """The result for one table. `position`: every change at the source before it was to be in the destination; `at`:
    when the source was there, in seconds since the Unix epoch. `rows`: the number of rows compared. `differences`: the
    first of the rows that `missing`, `extra` and `changed` count. `skipped`: the number of rows that were not compared,
    with the reason in `why`; with the verdict "not compared", `why` applies to the whole table."""

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

    @property
    def different(self) -> int:
        return self.missing + self.extra + self.changed

    def as_json(self, *, with_rows: bool = True) -> dict[str, Any]:
        """`with_rows`: include the values of rows that differ."""
        return {
            "table": written(self.table),
            "verdict": self.verdict,
            "position": None if self.position is None else str(self.position),
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
        }

    def in_words(self) -> str:
        """Returns one line, without the rows."""
        if self.verdict == "not compared":
            return f"{written(self.table)} was not compared: {self.why}"
        found = "equal" if self.verdict == "equal" else f"DIFFERENT ({self._counts()})"
        words = f"{written(self.table)}: {found} up to {self.position}, at {_moment(self.at)}, {self.rows:,} rows"
        return f"{words}; {self.skipped:,} rows were not compared: {self.why}" if self.skipped else f"{words}."

    def _counts(self) -> str:
        counts = {"missing": self.missing, "extra": self.extra, "changed": self.changed}
        return ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)


@dataclass(frozen=True, slots=True)
class Verified:
    """The result for all tables. `share`: the share of each table's keys that was compared."""

    tables: Sequence[TableVerified]
    share: float = 1.0
    repaired: Sequence[TableName] = ()

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
        }


def _moment(seconds: float | None) -> str:
    return datetime.fromtimestamp(seconds or 0.0, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
