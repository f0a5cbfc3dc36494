"""What the operations of a pipeline return: the outcome of a run, the status, the results of a verification.

Plain data for people and scripts; scripts may rely on the form of `as_json`. What could not be queried for a status is
None, and `Status.unknown` gives the reason in a sentence: a status is needed most when a server is down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.engine.model.phases import FOLLOWED, Errored, TableState, phase_name, phase_to_json
from airflow_provider_pgetl.engine.model.positions import Boundary, Lineage
from airflow_provider_pgetl.engine.model.tables import TableName, written


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to stream: its holder, its epoch, and when it expires by the store's clock."""

    holder: str
    epoch: int
    expires: float


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run or a copy ended: the Errored tables, without which the other tables finished. Empty: no table is
    Errored."""

    errored: Mapping[TableName, Errored] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"errored": {written(table): phase_to_json(phase) for table, phase in self.errored.items()}}


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The position of a Ready table: every change before `position` is in the destination. `copied_rows`: the rows of
    its last copy; the lags are those that its stream last reported. All of it is read from the store's server alone."""

    table: TableName
    position: Boundary
    copied_rows: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "table": written(self.table),
            "position": str(self.position),
            "copied_rows": self.copied_rows,
            "lag_bytes": self.lag_bytes,
            "lag_seconds": self.lag_seconds,
        }


@dataclass(frozen=True, slots=True)
class TableStatus:
    """`since`: when this phase was reached, in seconds since the Unix epoch. `position`: the table's changes up to
    there are in the destination. `merged`: its readers see the changes up to there, if changes land beside the tables
    and are merged separately; None where changes do not land. `lag_bytes`: the WAL up to the source's end that may
    still concern the table, by the last report of its stream, if that runs; None where no stream follows the table.
    `transformed`: the columns, or patterns, for which there are rules, with the transformers."""

    table: TableName
    state: TableState
    destination: TableName | None = None
    since: float | None = None
    position: Boundary | None = None
    lag_bytes: int | None = None
    merged: Boundary | None = None
    transformed: Mapping[str, str] = field(default_factory=dict)

    @property
    def merge_lag_bytes(self) -> int | None:
        """The WAL between the changes that have landed and those that readers see."""
        if self.merged is None or self.position is None:
            return None
        return max(0, self.position.lsn - self.merged.lsn)

    def as_json(self) -> dict[str, Any]:
        return {
            "table": written(self.table),
            "destination": None if self.destination is None else written(self.destination),
            **phase_to_json(self.state.phase),
            "generation": self.state.generation,
            "attempt": self.state.attempt,
            "since": self.since,
            "position": _lsn(self.position),
            "lag_bytes": self.lag_bytes,
            "merged": _lsn(self.merged),
            "merge_lag_bytes": self.merge_lag_bytes,
            "transformed": dict(self.transformed),
        }


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """A replication slot of the pipeline. `stream` is "apply" or the sync group's "c<attempt>"; `lost` is the server's
    reason why the slot can no longer be used."""

    name: str
    stream: str
    active: bool
    confirmed: Boundary | None
    retained_bytes: int | None
    wal_status: str | None = None
    lost: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "stream": self.stream,
            "active": self.active,
            "confirmed": _lsn(self.confirmed),
            "retained_bytes": self.retained_bytes,
            "wal_status": self.wal_status,
            "lost": self.lost,
        }


@dataclass(frozen=True, slots=True)
class Status:
    """The status at one time. `wal_end` is that of the source; `slots` is None if the source could not be queried.
    `streamed_by` describes the process that holds the lease."""

    pipeline: str
    instance: str
    epoch: int
    tables: tuple[TableStatus, ...]
    slots: tuple[SlotStatus, ...] | None = None
    wal_end: Boundary | None = None
    lease: Lease | None = None
    lineage: Lineage | None = None
    unknown: tuple[str, ...] = ()
    paused: float | None = None
    streamed_by: str | None = None

    @property
    def errored(self) -> Mapping[TableName, Errored]:
        phases = {each.table: each.state.phase for each in self.tables}
        return {table: phase for table, phase in phases.items() if isinstance(phase, Errored)}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems that do not pass by themselves: lost or missing slots, without which changes are missing."""
        lost = tuple(_lost(slot) for slot in self.slots or () if slot.lost is not None)
        followed = any(phase_name(each.state.phase) in FOLLOWED for each in self.tables)
        if self.slots is None or not followed or any(slot.stream == "apply" for slot in self.slots):
            return lost
        return (f"The slot that the tables are followed by does not exist any more. {_SLOT_REMEDY}", *lost)

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "instance": self.instance,
            "epoch": self.epoch,
            "tables": [table.as_json() for table in self.tables],
            "slots": None if self.slots is None else [slot.as_json() for slot in self.slots],
            "wal_end": _lsn(self.wal_end),
            "lease": _lease(self.lease),
            "paused": self.paused,
            "lineage": _lineage(self.lineage),
            "warnings": list(self.warnings),
            "unknown": list(self.unknown),
        }


_SLOT_REMEDY = ErrorKind.SLOT_LOST.directive.remedy


def _lost(slot: SlotStatus) -> str:
    remedy = _SLOT_REMEDY if slot.stream == "apply" else "The next run copies its tables again by itself."
    return f"The slot {slot.name} is lost ({slot.lost}): changes are missing. {remedy}"


def _lsn(boundary: Boundary | None) -> str | None:
    return None if boundary is None else str(boundary)


def _lease(lease: Lease | None) -> dict[str, Any] | None:
    return None if lease is None else {"holder": lease.holder, "epoch": lease.epoch, "expires": lease.expires}


def _lineage(lineage: Lineage | None) -> dict[str, Any] | None:
    if lineage is None:
        return None
    return {
        "system": lineage.system,
        "timeline": lineage.timeline,
        "database": lineage.database,
        "publication": lineage.publication,
    }


# -- The results of a verification: plain data, as JSON and as text for a log. -----------------------------------------

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


# -- The history of a stream. ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the streaming worker measured in a span of time that ended at `at` of the store's clock. The largest lag and
    the largest amount of WAL that the apply slot retained and of memory that the process held; how many changes and
    batches were written."""

    lag_bytes: int = 0
    lag_seconds: float = 0.0
    changes: int = 0
    batches: int = 0
    retained_bytes: int = 0
    memory_bytes: int = 0
    at: float = 0.0

    def joined(self, later: Measurement) -> Measurement:
        """Returns the measurement of both spans."""
        return Measurement(
            max(self.lag_bytes, later.lag_bytes),
            max(self.lag_seconds, later.lag_seconds),
            self.changes + later.changes,
            self.batches + later.batches,
            max(self.retained_bytes, later.retained_bytes),
            max(self.memory_bytes, later.memory_bytes),
            later.at,
        )


@dataclass(frozen=True, slots=True)
class Resolution:
    """Measurements are kept joined to spans of `seconds`, for the time `kept` (in seconds)."""

    seconds: int
    kept: int


RESOLUTIONS = (Resolution(10, 3600), Resolution(120, 24 * 3600), Resolution(1800, 14 * 24 * 3600))
"""So a pipeline has at most 360 + 720 + 672 measurements, however long it runs."""


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of a table's schema. It is valid from `position`; `recorded` is when the pipeline met it, in seconds
    since 1970, by the clock of the state database. `applied`: whether the destination has rows that came under it."""

    position: Boundary
    recorded: float | None
    what: str
    applied: bool

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "position": str(self.position)}
