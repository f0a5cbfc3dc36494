"""The protocols of the store: what the engine stores, and what it requires of an implementation; opening a store.

There are six narrow protocols; `Store` is their sum, which the pipeline needs. The two implementations, `memory_store`
and `postgres_store`, pass the same test suite.

Rules for every implementation
* Reads come from a cache that `load()` fills; writes go to the durable side first and then to the cache, so that a
  reader never sees what a crash could revert. `load()` may be called at any time to read what others wrote.
* `apply` and `apply_each` are the only ways to change a phase: `transition` under a lock, with `apply` for several
  tables all or nothing. Every state that was ever taken is kept in a linked history.
* Progress and high-water marks never go down.
* One store object belongs to one pipeline (one `id`, one `instance`) and may be used by several threads.
* Time is that of the store's own clock: leases of two machines are compared with the same clock.

A failing state database raises `PgetlError(STORE)`; then it is unknown whether the write took effect, and the caller
sends it again.
"""

from __future__ import annotations

import base64
import secrets
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_pgetl.engine.model.errors import StateReplaced
from airflow_provider_pgetl.engine.model.phases import Event, Refused, TableState
from airflow_provider_pgetl.engine.model.positions import (
    NO_MARK,
    Boundary,
    HighWater,
    Lineage,
    Seen,
)
from airflow_provider_pgetl.engine.model.results import Lease, Measurement, Resolution
from airflow_provider_pgetl.engine.model.tables import CopiedSelection, TableName, TableSchema
from airflow_provider_pgetl.engine.model.verification import TableVerified

# -- The tables that a store object shows differently since its reader last asked. -------------------------------------
#
# Names are collected in a set until they are taken, so that any number of changes of one table costs the reader one
# read.


class ChangedTables:
    """Filled by the store whose `changed_tables` made it. It has one reader, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: set[TableName] = set()

    def add(self, names: Iterable[TableName]) -> None:
        with self._lock:
            self._names.update(names)

    def take(self) -> frozenset[TableName]:
        """Returns the tables since the last call: the record of each, a schema, or its metadata of the destination may
        differ."""
        with self._lock:
            names, self._names = self._names, set()
        return frozenset(names)


# -- Protocol. ---------------------------------------------------------------------------------------------------------

# The name of the apply stream in the stored progress: below that boundary everything that the stream owns is durable.
APPLY_CEILING = "ceiling"


@dataclass(frozen=True, slots=True)
class PipelineRecord:
    """`instance` is random and made once: it distinguishes this store's slots from those of a pipeline with the same id
    elsewhere. `owner`: who declares and prepares the pipeline, if that has a name. `paused`: the time, by the store's
    clock, since which nothing is to be streamed and no copy is to begin; None while the pipeline is not paused."""

    id: str
    instance: str
    epoch: int = 0
    lineage: Lineage | None = None
    owner: str | None = None
    paused: float | None = None


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A table's state, and what relates it to its source.

    `relation` is the OID of the table, `membership` that of its row in the publication (None when it is published
    otherwise): if one of them changes, changes were missed in between. `selection` is the selection with which it was,
    or is to be, copied. `high_water` is the furthest position at which the destination was ever seen. `acknowledged` is
    the generation that the streaming worker last took up.
    """

    table: TableName
    state: TableState = field(default_factory=TableState)
    relation: int | None = None
    membership: int | None = None
    selection: CopiedSelection | None = None
    high_water: HighWater = NO_MARK
    acknowledged: int = 0

    @property
    def mark(self) -> Boundary:
        """How far the destination was seen to have the data that it has now; START where that is not known."""
        return self.high_water.of(self.state.attempt)


@dataclass(frozen=True, slots=True)
class Registration:
    """What is stored of a declared table when it is registered. `selection`: None leaves the one that is stored."""

    relation: int
    membership: int | None
    selection: CopiedSelection | None = None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    state: TableState
    at: float


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the stream was behind its source at the time `at` of the store's clock."""

    bytes: int
    seconds: float
    at: float


@dataclass(frozen=True, slots=True)
class DestinationMetadata:
    """A table's place in the destination. `snapshot`: the snapshot of its copy. `applied`: whether its schema is fully
    applied there."""

    destination: TableName
    snapshot: Boundary
    applied: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundTable:
    """What a copy found of a table in its snapshot, and where it writes the table. `schema` is valid from
    `valid_from`."""

    relation: int
    membership: int | None
    valid_from: Boundary
    schema: TableSchema
    place: DestinationMetadata


class StateStore(Protocol):
    """Phases, progress, leases."""

    def pipeline(self) -> PipelineRecord: ...

    def instances(self) -> Mapping[str, str]:
        """The instances of all pipelines in the same store, this one included, by the ids of the pipelines."""

    def now(self) -> float:
        """Seconds since the Unix epoch, by the store's clock. Due times are compared with it, whichever machine stored
        them."""

    def record_lineage(self, lineage: Lineage) -> None: ...

    def set_owner(self, owner: str | None, *, instead_of: str | None) -> bool:
        """Records the owner of the pipeline, and returns True; if the present owner is not `instead_of`, records
        nothing and returns False."""

    def set_paused(self, paused: bool) -> None:
        """Pauses the pipeline from now on, or ends its pause; if it is already paused, the time stays."""

    def load(self) -> int:
        """Brings the cache to the state of the durable side; returns the number of tables. Reads what has changed since
        the last load; reads everything if the durable side is not the one that was read before. Raises an error if it
        was set back to an earlier state."""

    def changes(self) -> int:
        """The number of changes there have ever been, as far as the cache shows; it is lower after the store was set
        back."""

    def changed_tables(self) -> ChangedTables:
        """Returns an object that collects, from now on, every table that this store object shows differently."""

    def tables(self) -> Mapping[TableName, TableRecord]: ...

    def register(
        self, table: TableName, relation: int, membership: int | None, selection: CopiedSelection | None = None
    ) -> TableRecord:
        """Adds the table in Init, or records the OIDs and the selection of an existing table, whose state stays. None
        leaves the selection as it was."""

    def register_all(self, tables: Mapping[TableName, Registration]) -> Mapping[TableName, TableRecord]:
        """Stores the metadata of several tables."""

    def apply(
        self, events: Mapping[TableName, Event], *, epoch: int | None = None
    ) -> Mapping[TableName, TableState] | Refused:
        """Applies all events, or none. A table that is not registered refuses its event. `epoch` is that of the
        streaming worker that sends the events, which are refused when it is no longer the present one. People and
        copies have no epoch."""

    def apply_each(
        self, events: Mapping[TableName, Event], *, epoch: int | None = None
    ) -> Mapping[TableName, TableState | Refused]:
        """Applies each event that its table does not refuse, in one transaction; returns the result for each table."""

    def history(self, table: TableName) -> Sequence[HistoryEntry]:
        """The states of the table, oldest first, the present one last; the oldest may have been pruned."""

    def since(self) -> Mapping[TableName, float]:
        """When each table came to its present state."""

    def acknowledge(self, generations: Mapping[TableName, int]) -> None:
        """Records that the streaming worker has released everything before these generations."""

    def raise_high_water(self, positions: Mapping[TableName, HighWater]) -> None:
        """Raises marks. A mark of a later attempt replaces one of an earlier attempt, which is never set again."""

    def progress(self, worker: str) -> Boundary | None: ...

    def seen(self) -> Mapping[str, Seen]:
        """What each worker with recorded progress has seen of the source up to that progress."""

    def record_progress(self, worker: str, boundary: Boundary, seen: Seen | None = None) -> Boundary:
        """Is monotone: returns the larger of the stored boundary and `boundary`. `seen` is stored with the boundary."""

    def delete_progress(self, worker: str) -> None: ...

    def acquire_lease(self, holder: str, ttl: float, *, over: int | None = None) -> Lease | None:
        """Takes the lease if it is free, expired or `holder`'s own, always with a new epoch; returns None while another
        process holds it. `over`: the epoch of a lease whose holder is known to have ended; that lease is taken as if it
        had expired."""

    def renew_lease(self, epoch: int, ttl: float) -> bool:
        """Returns False if the lease has passed to another epoch."""

    def release_lease(self, epoch: int) -> None: ...

    def lease(self) -> Lease | None:
        """The lease, if a process holds it now."""

    def raise_epoch(self) -> int:
        """Starts and returns a new epoch without a holder: whatever a process of an older epoch still does is void."""

    def record_lag(self, lag_bytes: int, seconds: float) -> None:
        """Records how far the streaming worker is behind, from time to time. Waiting readers are not woken by it."""

    def lag(self) -> Lag | None:
        """The lag that was recorded last; None if none ever was."""

    def record_measurement(self, measurement: Measurement) -> None:
        """Adds a measurement, at the present time, to the history of each resolution. Waiting readers are not woken by
        it."""

    def measurements(self, resolution: Resolution) -> Sequence[Measurement]:
        """The history in this resolution, in order of time. Spans in which nothing was recorded are missing."""

    def start_attempt(self, ttl: float, holder: str = "") -> int:
        """Starts a new copy attempt of the process `holder`, which is alive for `ttl` seconds unless it is extended by
        `beat_attempt`."""

    def beat_attempt(self, attempt: int, ttl: float) -> bool: ...

    def end_attempt(self, attempt: int) -> None: ...

    def last_attempt(self) -> int:
        """The number of the latest attempt that was ever started; 0 if there was none."""

    def live_attempts(self) -> frozenset[int]: ...

    def attempt_holders(self) -> Mapping[int, str]:
        """The live attempts, with the processes that hold them."""

    def wait(self, timeout: float) -> bool:
        """Waits until another writer changes something (then returns True, and the cache is fresh) or the time is up.
        May return True without a change."""

    def close(self) -> None: ...


class SchemaStore(Protocol):
    """Versions of table schemas, each valid from a boundary on."""

    def schema(self, table: TableName, at: Boundary) -> TableSchema | None:
        """The version with the largest boundary at or before `at`."""

    def schemas(self) -> Mapping[TableName, Mapping[Boundary, TableSchema]]: ...

    def store_schema(self, table: TableName, valid_from: Boundary, schema: TableSchema) -> None: ...

    def schemas_recorded(self, table: TableName) -> Mapping[Boundary, float | None]:
        """When each version was first stored; None where that is not known."""

    def forget_schemas(self, table: TableName, valid_from: Collection[Boundary]) -> None:
        """Deletes versions that no position which can be sent again needs."""


class DestinationStore(Protocol):
    """The metadata of the destination for each table."""

    def destination_metadata(self, table: TableName) -> DestinationMetadata | None: ...

    def store_places(self, places: Mapping[TableName, DestinationMetadata]) -> None:
        """Stores the metadata of several tables."""


class TableLifecycleStore(Protocol):
    """Deletion of what is stored."""

    def clear_copy_state(self, table: TableName) -> None:
        """Deletes schemas, destination metadata and the high-water mark; the phase stays. A new copy follows."""

    def begin_copies(self, found: Mapping[TableName, FoundTable]) -> None:
        """Clears the copy state of these tables and stores what a copy has found instead, all at once. A table that is
        not registered is ignored."""

    def delete_table(self, table: TableName) -> None:
        """Deletes all that is stored of a table that left the pipeline. Its data in the destination stays."""

    def destroy(self) -> None:
        """Deletes all that is stored of the pipeline."""


class CompletionStore(Protocol):
    """Completion records of an orchestrator's runs: which task of which run completed when, by the store's clock.

    From these records a task that is started again determines whether it was cleared after it had completed, or is
    retried. Records of old runs are deleted after some time.
    """

    def record_completion(self, run: str, task: str) -> None:
        """Records that the task has completed now; replaces an earlier completion."""

    def record_completions(self, run: str, tasks: Collection[str]) -> None:
        """Does the same for several tasks at once."""

    def completions(self, run: str) -> Mapping[str, float]:
        """When each task of the run last completed."""

    def record_announced(self, run: str, positions: Mapping[TableName, str]) -> None:
        """Records that the run announces changes of these tables, up to positions that also identify the data."""

    def announced(self, run: str) -> Mapping[TableName, str]:
        """The positions up to which other runs have announced changes. Those of this run are not among them: if the run
        is repeated, it announces the same changes again."""


class VerificationStore(Protocol):
    """Results of verifications, with the rows that differed. Of each table the newest result is kept, and before it the
    newest `DIFFERING_KEPT` in which rows differed. They are deleted with the table, but outlive its copies."""

    def record_verified(self, results: Sequence[TableVerified]) -> None:
        """Adds a result to those of each table. A table that is not registered is ignored. Waiting readers are not
        woken by it."""

    def verifications(self, table: TableName) -> Sequence[TableVerified]:
        """The results that are kept of the table, oldest first."""

    def last_verified(self) -> Mapping[TableName, TableVerified]:
        """The newest result of each table that was ever verified, without rows."""


DIFFERING_KEPT = 10


class Store(
    StateStore, SchemaStore, DestinationStore, TableLifecycleStore, CompletionStore, VerificationStore, Protocol
):
    """Everything that is stored of a pipeline."""


# -- The random instance, which distinguishes a pipeline's row in one state database from namesakes elsewhere. ---------
#
# It becomes part of slot names: hence short, in lower case, letters and digits only. A pipeline that is destroyed and
# begun anew is another instance; a process that still works for the former one gets the error `destroyed`.

LENGTH = 6


def new_instance() -> str:
    """Returns six characters of lower-case base32: thirty random bits."""
    return base64.b32encode(secrets.token_bytes(5)).decode().lower()[:LENGTH]


def destroyed(pipeline_id: str) -> StateReplaced:
    return StateReplaced(
        f'The stored state of pipeline "{pipeline_id}" was destroyed while this process was at work.',
        remedy="Start the pipeline again if it is still wanted; it begins anew.",
    )


def restored(pipeline_id: str) -> StateReplaced:
    return StateReplaced(
        f'The stored state of pipeline "{pipeline_id}" was set back to an earlier one while this process was at work.',
        remedy="Start the pipeline again: it looks for what is missing in that state, and says what to do.",
    )


# -- Opening a store from a state URI. ---------------------------------------------------------------------------------
#
# `memory:` is for throw-away runs: a store of this process alone, which is lost when the process ends. Every other URI
# is Postgres, whose libraries are imported only then.


def open_store(uri: str, pipeline_id: str, *, in_source: bool = False) -> Store:
    """Returns the pipeline's store with its cache filled. Its tables are created or upgraded where that is needed.

    `in_source`: the source holds the state, so that errors name the database as the source.
    """
    if uri == "memory:":
        from airflow_provider_pgetl.engine.state.memory_store import MemoryStore

        return MemoryStore(pipeline_id)
    from airflow_provider_pgetl.engine.state.postgres_store import PostgresStore

    return PostgresStore.open(uri, pipeline_id, _role(in_source))


def is_stored(uri: str, pipeline_id: str, *, in_source: bool = False) -> bool:
    """Returns whether there is state of the pipeline; creates none. State in the memory of a process can only be read
    there, so for `memory:` the answer is True."""
    if uri == "memory:":
        return True
    from airflow_provider_pgetl.engine.state.postgres_store import is_stored

    return is_stored(uri, pipeline_id, _role(in_source))


def withdraw_unused(uri: str, *, in_source: bool = False) -> bool:
    """Removes what stores share in that database, if no pipeline is left there. Returns whether anything was
    removed."""
    if uri == "memory:":
        return False
    from airflow_provider_pgetl.engine.state.state_database import withdraw

    return withdraw(uri, _role(in_source))


def _role(in_source: bool) -> str:
    from airflow_provider_pgetl.engine.state.state_database import STATE_DATABASE

    return "the source" if in_source else STATE_DATABASE
