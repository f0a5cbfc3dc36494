"""What the operations of a pipeline return: the outcome of a run, the status, the history of a stream.

Plain data for people and scripts; scripts may rely on the form of `as_json`. What could not be queried for a status is
None, and `Status.unknown` gives the reason in a sentence: a status is needed most when a server is down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.engine.model.phases import FOLLOWED, Errored, TableState, phase_name, phase_to_json
from airflow_provider_pgetl.engine.model.positions import Boundary, Lineage
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.engine.model.verification import TableVerified


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
    `verified`: the newest result of a verification, without rows. `transformed`: the columns, or patterns, for which
    there are rules, with the transformers."""

    table: TableName
    state: TableState
    destination: TableName | None = None
    since: float | None = None
    position: Boundary | None = None
    lag_bytes: int | None = None
    merged: Boundary | None = None
    verified: TableVerified | None = None
    transformed: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_verified_as_it_is(self) -> bool:
        """Whether the newest verification was of the present copy, and not of one before."""
        return self.verified is not None and self.verified.generation == self.state.generation

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
            "verified": None if self.verified is None else self.verified.as_json(with_rows=False),
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
        """Problems that do not pass by themselves: lost or missing slots, without which changes are missing; tables
        that were found to differ from the source."""
        return (*self._slot_warnings, *map(_differed, filter(_differs, self.tables)))

    @property
    def _slot_warnings(self) -> tuple[str, ...]:
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


def _differs(table: TableStatus) -> bool:
    return table.is_verified_as_it_is and table.verified is not None and table.verified.verdict == "different"


def _differed(table: TableStatus) -> str:
    assert table.verified is not None, "it differs by its verification"
    shown = f"`pgetl verify FILE {written(table.table)} --last` shows the rows"
    return f"{table.verified.in_words()} {shown}; `pgetl reset FILE {written(table.table)}` has it copied again."


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
