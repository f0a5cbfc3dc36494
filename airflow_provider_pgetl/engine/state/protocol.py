"""What the engine remembers, and what it asks of whoever remembers it.

Four narrow protocols, after the roles they play; `Store` is their sum, which the pipeline needs. Two implementations,
`memory` and `postgres`, pass one and the same suite.

Rules for every implementation
* Reads come from a cache that `load()` fills; writes go to the durable side first and then to the cache, so that a
  reader never sees what a crash could take back. `load()` may be called at any time to see what others wrote.
* `apply` is the only way to change a phase: `transition` under a lock, for several tables all or nothing, with every
  state that was ever taken kept in a linked history.
* Progress and high-water marks never go down.
* One store object belongs to one pipeline (one `id`, one `protocol`) and may be used by several threads.
* Time is the store's own clock: leases of two machines are judged by one of them.

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
)
from airflow_provider_pgetl.engine.model.recognition import Seen
from airflow_provider_pgetl.engine.model.tables import CopiedSelection, TableName, TableSchema

# -- Which tables a store object has come to show differently since somebody last asked. -------------------------------
#
# Names gather in a set while nobody asks, so that any number of changes of one table costs its reader one look.


class ChangedTables:
    """Filled by the store whose `changed_tables` made it; for one reader, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: set[TableName] = set()

    def add(self, names: Iterable[TableName]) -> None:
        with self._lock:
            self._names.update(names)

    def take(self) -> frozenset[TableName]:
        """The tables since the last call: of each the record, a schema or its place in the destination may differ."""
        with self._lock:
            names, self._names = self._names, set()
        return frozenset(names)


# -- Protocol. ---------------------------------------------------------------------------------------------------------

# Under which name the store has how far the apply stream has come: below it all that the stream owns is durable.
APPLY_CEILING = "ceiling"


@dataclass(frozen=True, slots=True)
class PipelineRecord:
    """`protocol` is random and made once: it tells this store's slots from those of a namesake. `owner`: who
    declares the pipeline and prepares it, if that has a name. `paused`: since when, by the store's clock, nothing is to
    be streamed and no copy to begin; None while the pipeline is not paused."""

    id: str
    instance: str
    epoch: int = 0
    lineage: Lineage | None = None
    owner: str | None = None
    paused: float | None = None


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A table's state with what ties it to its source.

    `relation` is the OID of the table, `membership` its share's of the publication (None when published
    otherwise): if one changes there was a gap. `terms` are those on which it is, or is to be, copied. `high_water` is
    the furthest position the destination was ever seen at. `acknowledged` is the generation that the streaming worker
    last took up.
    """

    table: TableName
    state: TableState = field(default_factory=TableState)
    relation: int | None = None
    membership: int | None = None
    terms: CopiedSelection | None = None
    high_water: HighWater = NO_MARK
    acknowledged: int = 0

    @property
    def mark(self) -> Boundary:
        """How far the destination was seen to have the data that it has now; START where nothing is known of it."""
        return self.high_water.of(self.state.attempt)


@dataclass(frozen=True, slots=True)
class Registration:
    """What a declared table is registered with. `terms`: None leaves those that are there."""

    relation: int
    membership: int | None
    terms: CopiedSelection | None = None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    state: TableState
    at: float


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to stream: who holds it, under which epoch, and until when by the store's clock."""

    holder: str
    epoch: int
    expires: float


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the stream was behind its source at the time `at`, by the store's clock."""

    bytes: int
    seconds: float
    at: float


@dataclass(frozen=True, slots=True)
class DestinationMetadata:
    """Where a table lives in the destination, and which schema version is fully applied there."""

    destination: TableName
    snapshot: Boundary
    applied: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundTable:
    """What a copy found of a table in its snapshot, and where it puts it. `schema` is valid from `valid_from`."""

    relation: int
    membership: int | None
    valid_from: Boundary
    schema: TableSchema
    place: DestinationMetadata


class StateStore(Protocol):
    """Phases, progress, leases."""

    def pipeline(self) -> PipelineRecord: ...

    def instances(self) -> Mapping[str, str]:
        """The instance of every pipeline that is stored beside this one, and its own, by the pipelines' ids."""

    def now(self) -> float:
        """Seconds since the Unix epoch, by the store's clock: what is due is judged by it, whoever stored it."""

    def record_lineage(self, lineage: Lineage) -> None: ...

    def set_owner(self, owner: str | None, *, instead_of: str | None) -> bool:
        """Record who owns the pipeline, unless the owner is another than `instead_of`: then False, and nothing is."""

    def set_paused(self, paused: bool) -> None:
        """Paused from now on, or not any more; of one that is paused already the time stays."""

    def load(self) -> int:
        """Bring the cache to what the durable side is; answers how many tables there are. What is read is what has
        changed since; all of it, if the durable side is not the one that was read before, or older."""

    def changes(self) -> int:
        """How many there have ever been, as far as the cache shows: fewer where the store was set back."""

    def changed_tables(self) -> ChangedTables:
        """Told from now on of every table that this object comes to show differently."""

    def tables(self) -> Mapping[TableName, TableRecord]: ...

    def register(
        self, table: TableName, relation: int, membership: int | None, terms: CopiedSelection | None = None
    ) -> TableRecord:
        """Add the table in Init, or note the OIDs and terms of one that is there, whose state stays. None leaves the
        terms as they were."""

    def register_all(self, tables: Mapping[TableName, Registration]) -> Mapping[TableName, TableRecord]:
        """The same for several tables at once."""

    def apply(
        self, events: Mapping[TableName, Event], *, epoch: int | None = None
    ) -> Mapping[TableName, TableState] | Refused:
        """Let all events take effect, or none. A table that is not registered refuses. `epoch` is that of a streaming
        worker that speaks: refused when it is not the present one any more. People and copies have none."""

    def apply_each(
        self, events: Mapping[TableName, Event], *, epoch: int | None = None
    ) -> Mapping[TableName, TableState | Refused]:
        """Let each event take effect that its table does not refuse, in one transaction; answers for each table."""

    def history(self, table: TableName) -> Sequence[HistoryEntry]:
        """Every state the table was in, oldest first, the present one last."""

    def since(self) -> Mapping[TableName, float]:
        """When each table came to the state that it is in."""

    def acknowledge(self, generations: Mapping[TableName, int]) -> None:
        """The streaming worker has let go of everything before these generations."""

    def raise_high_water(self, positions: Mapping[TableName, HighWater]) -> None:
        """A mark of a later attempt replaces one of an earlier, which is never set again."""

    def progress(self, worker: str) -> Boundary | None: ...

    def seen(self) -> Mapping[str, Seen]:
        """For each worker with progress what it has seen of the source up to there."""

    def record_progress(self, worker: str, boundary: Boundary, seen: Seen | None = None) -> Boundary:
        """Monotone: answers the larger of what was stored and `boundary`. `seen` goes with the boundary."""

    def delete_progress(self, worker: str) -> None: ...

    def acquire_lease(self, holder: str, ttl: float, *, over: int | None = None) -> Lease | None:
        """Take the lease if it is free, expired or `holder`'s own, always with a new epoch; None while another holds
        it. `over`: the epoch of a lease whose holder is known to have ended; it is taken as if it had expired."""

    def renew_lease(self, epoch: int, ttl: float) -> bool:
        """False when the lease has passed to another epoch."""

    def release_lease(self, epoch: int) -> None: ...

    def lease(self) -> Lease | None:
        """The lease if somebody holds it now."""

    def raise_epoch(self) -> int:
        """A new epoch with no holder: what an older one still does is void."""

    def record_lag(self, lag_bytes: int, seconds: float) -> None:
        """The streaming worker says now and then how far it is behind. Nobody is woken for it."""

    def lag(self) -> Lag | None:
        """What was said last; None if nothing ever was."""

    def start_attempt(self, ttl: float, holder: str = "") -> int:
        """A new copy attempt of the process `holder`, alive for `ttl` seconds unless it beats."""

    def beat_attempt(self, attempt: int, ttl: float) -> bool: ...

    def end_attempt(self, attempt: int) -> None: ...

    def last_attempt(self) -> int:
        """The number of the latest attempt that was ever started; 0 if none was."""

    def live_attempts(self) -> frozenset[int]: ...

    def attempt_holders(self) -> Mapping[int, str]:
        """The attempts alive, with the processes that hold them."""

    def wait(self, timeout: float) -> bool:
        """Until another writer changes something (then the cache is fresh) or time is up. May wake for nothing."""

    def close(self) -> None: ...


class SchemaStore(Protocol):
    """Versions of table schemas, each valid from a boundary on."""

    def schema(self, table: TableName, at: Boundary) -> TableSchema | None:
        """The version with the largest boundary at or before `at`."""

    def schemas(self) -> Mapping[TableName, Mapping[Boundary, TableSchema]]: ...

    def store_schema(self, table: TableName, valid_from: Boundary, schema: TableSchema) -> None: ...

    def prune_schemas(self, keep_from: Mapping[TableName, Boundary]) -> int:
        """Per table keep the newest version at or before the boundary and all later ones; answers how many went."""


class DestinationStore(Protocol):
    """What the destination was told about each table."""

    def destination_metadata(self, table: TableName) -> DestinationMetadata | None: ...

    def applied_destination_metadata(self, table: TableName) -> DestinationMetadata | None:
        """None unless the schema is fully applied."""

    def store_destination_metadata(self, table: TableName, metadata: DestinationMetadata) -> None: ...

    def store_places(self, places: Mapping[TableName, DestinationMetadata]) -> None:
        """The same for several tables at once."""


class TableLifecycleStore(Protocol):
    """Forgetting."""

    def clear_copy_state(self, table: TableName) -> None:
        """Schemas, destination metadata and high-water mark go; the phase stays. A fresh copy follows."""

    def begin_copies(self, found: Mapping[TableName, FoundTable]) -> None:
        """Clear the copy state of these tables and store what a copy has found instead, all at once. A table that is
        not registered is passed over."""

    def delete_table(self, table: TableName) -> None:
        """All that is stored of a table that left the pipeline. Destination data stays."""

    def destroy(self) -> None:
        """All that is stored of the pipeline."""


class CompletionStore(Protocol):
    """The book of an orchestrator's runs: which task of which run completed when, by the store's clock.

    By it a task that is started again knows whether it was cleared after it had completed, or is retried. Old runs are
    forgotten in time.
    """

    def record_completion(self, run: str, task: str) -> None:
        """The task has completed now, whenever it may have before."""

    def record_completions(self, run: str, tasks: Collection[str]) -> None:
        """The same for several tasks at once."""

    def completions(self, run: str) -> Mapping[str, float]:
        """When each task of the run last completed."""

    def record_announced(self, run: str, positions: Mapping[TableName, str]) -> None:
        """The run announces changes of these tables, up to positions that say which data they are of."""

    def announced(self, run: str) -> Mapping[TableName, str]:
        """The positions up to which runs have announced changes. What this very run has is not among them: if it is
        repeated, it announces again."""


class Store(StateStore, SchemaStore, DestinationStore, TableLifecycleStore, CompletionStore, Protocol):
    """Everything the pipeline remembers."""


# -- The random id that tells a pipeline's row in one state database from its namesakes elsewhere. ---------------------
#
# It becomes part of slot names, hence short, lower case, letters and digits only. A pipeline that is destroyed and
# begun anew is another instance; what still works for the former one is told so by `destroyed`.

LENGTH = 6


def new_instance() -> str:
    """Six characters of lower-case base32: thirty random bits."""
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
