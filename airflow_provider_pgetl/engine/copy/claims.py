"""The claims of one attempt on its tables: the events that the attempt sends to the store, and the outcome for each
table.

`start` claims a table. A claim ends once: the table is published, failed, or left out because another attempt has it or
has taken it. A table is never taken from another attempt that is alive. A table that is still claimed when the attempt
ends stays in DataSync, for the next attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from airflow_provider_pgetl.engine.model.errors import Backoff, ErrorData, ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import (
    COPYING,
    ERRORED,
    CopyFinished,
    CopyStarted,
    DataSync,
    Errored,
    Event,
    Failed,
    FinishedCopy,
    Refused,
    RetryPolicy,
    TableState,
    phase_name,
)
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import Noted, Observer, PhaseReached
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.engine.runtime.threads import PATIENCE, THREADS, Runtime, persistently
from airflow_provider_pgetl.engine.state.store import HistoryEntry, Store


class Claims:
    """The tables of one attempt. Used by the thread of its driver; any thread may call `holds`."""

    def __init__(
        self,
        store: Store,
        attempt: int,
        observer: Observer,
        patience: float = PATIENCE,
        runtime: Runtime = THREADS,
    ) -> None:
        self._store = store
        self._attempt = attempt
        self._observer = observer
        self._patience = patience
        self._runtime = runtime
        self._generations: dict[TableName, int] = {}
        self._held: set[TableName] = set()
        self.published: list[TableName] = []
        self.failed: dict[TableName, ErrorData] = {}
        self.left_out: dict[TableName, str] = {}

    def start(self, tables: Iterable[TableName]) -> None:
        # The attempts are read first: an attempt that begins afterwards has a later number and is refused the tables
        # claimed here.
        others = self._store.live_attempts() - {self._attempt}
        self._store.load()
        known = self._store.tables()
        claimed: dict[TableName, TableState] = {}
        for table in tables:
            if table not in known:
                self.leave_out(table, f"{written(table)} is not registered.")
            elif isinstance(known[table].state.phase, DataSync) and known[table].state.attempt in others:
                self.leave_out(table, f"{written(table)} is being copied by attempt {known[table].state.attempt}.")
            else:
                claimed[table] = known[table].state
        self._generations |= {table: seen.generation for table, seen in claimed.items()}
        events = {t: CopyStarted(seen.generation, self._attempt, seen.attempt or 0) for t, seen in claimed.items()}
        refused = self._tell_each(events)
        self._held |= claimed.keys() - refused.keys()
        if refused:
            self._leave_out_refused(refused)

    def _leave_out_refused(self, refused: Mapping[TableName, Refused]) -> None:
        self._store.load()
        for table, answer in refused.items():
            if self._is_copied(table):
                self.left_out[table] = f"{written(table)} was copied by another attempt."
            else:
                self.leave_out(table, answer.why)

    def _is_copied(self, table: TableName) -> bool:
        """Returns whether another attempt has copied the table since this attempt was requested. That is normal and not
        reported."""
        record = self._store.tables().get(table)
        return record is not None and phase_name(record.state.phase) not in COPYING | ERRORED

    @property
    def held(self) -> frozenset[TableName]:
        return frozenset(self._held)

    def holds(self, table: TableName) -> bool:
        return table in self._held

    def generation(self, table: TableName) -> int:
        return self._generations[table]

    def awaits_a_stream(self) -> bool:
        """Returns whether a streaming worker may still be writing changes that it gathered for an earlier generation
        than this attempt's."""
        self._store.load()
        if self._store.lease() is None:
            return False
        records = self._store.tables()
        held = {table: self._generations[table] for table in self._held if table in records}
        return any(generation > 1 and records[t].acknowledged < generation for t, generation in held.items())

    def confirm(self, table: TableName) -> bool:
        """Returns whether the claim still holds: the table was not rolled back, and no later attempt at it has begun.
        Otherwise leaves the table out."""
        self._store.load()
        record = self._store.tables().get(table)
        state = record.state if record else None
        ours = (self._generations[table], self._attempt)
        if state and (state.generation, state.attempt) == ours and isinstance(state.phase, DataSync):
            return True
        self.leave_out(table, f"{written(table)} was taken from copy attempt {self._attempt}.")
        return False

    def finish(self, whole_from: Mapping[TableName, Boundary]) -> None:
        """Records that the tables are published in the destination, each complete from its boundary on."""
        refused = self._tell_each(
            {t: CopyFinished(self._generations[t], self._attempt, boundary) for t, boundary in whole_from.items()}
        )
        for table in whole_from:
            if table in refused:
                self.leave_out(table, refused[table].why)
            else:
                self._held.discard(table)
                self.published.append(table)

    def fail(self, table: TableName, error: PgetlError) -> None:
        """Records the failure of the table in the store. A superseded attempt (`FENCED`) leaves the table out
        instead."""
        if error.kind is ErrorKind.FENCED:
            self.leave_out(table, error.message)
            return
        history = self._store.history(table)
        error = judged(error, history)
        policy = RetryPolicy.of(error.directive.retry, self._store.now() + delay(history))
        failed = Failed(self._generations[table], error.message, error.remedy, policy, self._attempt)
        refused = self._tell(table, failed)
        if refused is not None:
            self.leave_out(table, refused.why)
            return
        self._held.discard(table)
        self.failed[table] = ErrorData.of(error)

    def fail_all(self, error: PgetlError) -> None:
        """Calls `fail` for every table still held. If the store cannot be reached, the tables keep their state, as
        after a copy that died."""
        for table in sorted(self._held):
            try:
                self.fail(table, error)
            except PgetlError as refusal:
                self._observer(
                    Noted("warning", f"The failure of {written(table)} was not recorded: {refusal.message}", table)
                )

    def leave_out(self, table: TableName, why: str) -> None:
        self._held.discard(table)
        self.left_out[table] = why
        self._observer(Noted("info", f"Not copied: {why}", table))

    def _tell(self, table: TableName, event: Event) -> Refused | None:
        return self._tell_each({table: event}).get(table)

    def _tell_each(self, events: Mapping[TableName, Event]) -> dict[TableName, Refused]:
        """Applies the events in the store; returns the refused ones."""
        if not events:
            return {}
        answers = persistently(lambda: self._store.apply_each(events), patience=self._patience, runtime=self._runtime)
        refused: dict[TableName, Refused] = {}
        for table, answer in answers.items():
            if isinstance(answer, Refused):
                refused[table] = answer
            else:
                self._observer(PhaseReached(table, answer))
        return refused


# -- What follows a failure, by the table's history. Pure. -------------------------------------------------------------

_BACKOFF = Backoff(5.0, 1800.0)
_REWRITTEN_COPIES = 3


def judged(error: PgetlError, history: Sequence[HistoryEntry]) -> PgetlError:
    """Returns the error; or, if the last copies of the table have all ended with the same error and one more would end
    the same way, the error that leaves the table to manual action."""
    if error.kind is not ErrorKind.TABLE_REWRITTEN or _in_a_row(error.message, history) < _REWRITTEN_COPIES - 1:
        return error
    return PgetlError(ErrorKind.REWRITTEN_AGAIN, error.message, table=error.table)


def _in_a_row(reason: str, history: Sequence[HistoryEntry]) -> int:
    """Returns how many copies have failed for this reason since a copy failed for another reason, succeeded, or was
    left to manual action."""
    failures = 0
    for entry in reversed(history):
        match entry.state.phase:
            case Errored(reason=known, retry_policy=RetryPolicy(kind="timed")) if known == reason:
                failures += 1
            case Errored() | FinishedCopy():
                break
            case _:
                continue
    return failures


def delay(history: Sequence[HistoryEntry]) -> float:
    """Returns the seconds until the next attempt, which grow with every failure since the table was last copied."""
    failures = 0
    for entry in history:
        if isinstance(entry.state.phase, FinishedCopy):
            failures = 0
        elif isinstance(entry.state.phase, Errored):
            failures += 1
    return _BACKOFF.after(failures + 1)
