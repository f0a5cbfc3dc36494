"""The tables of a group, from the moment when their schemas are known to the publication of the last one.

An error while one table is processed ends only that table if it concerns it alone, and is raised otherwise. All code
here runs in the thread of the driver, except `_wanted`, which other threads call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.context import SourceServer
from airflow_provider_pgetl.engine.copy.claims import Claims
from airflow_provider_pgetl.engine.copy.ranges import Endpoints, RangeOutcome, RangeTask
from airflow_provider_pgetl.engine.copy.rows import no_rows
from airflow_provider_pgetl.engine.copy.runners import Outcomes, RangeRunner
from airflow_provider_pgetl.engine.destinations.protocol import AtomicCopy, Destination, RangeCopy, RangeRows
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError, unforeseen
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.model.reports import CopyProgressed, Noted, Observer
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema, written
from airflow_provider_pgetl.engine.runtime.processes import reach
from airflow_provider_pgetl.engine.runtime.threads import THREADS, Runtime, persistently
from airflow_provider_pgetl.engine.source.catalog import PublishedTable
from airflow_provider_pgetl.engine.source.range_reading import Rewritten, plan_ranges
from airflow_provider_pgetl.engine.state.store import DestinationMetadata, FoundTable, Store
from airflow_provider_pgetl.engine.transform.rules import TableRules
from airflow_provider_pgetl.engine.wal.pgoutput import KIND, Begin, Commit, Feedback, Keepalive, TruncateMessage, decode

# -- Finds, in the group's slot, which tables of the group were truncated since the snapshot. --------------------------
#
# A table whose file is not the snapshot's may have been truncated or rewritten. A TRUNCATE is in the stream, and from
# its end on the table is complete after the catch-up, whichever earlier rows the copy lacks. After VACUUM FULL, CLUSTER
# or a rewriting ALTER TABLE, nothing in the stream makes up for the rows that could not be read. So the slot is read,
# up to where the WAL ended after the other file was found. Nothing is confirmed, so the catch-up reads all of it again.
#
# A TRUNCATE of a single partition is not sent where the root is published, so it is not found here either; nor is one
# that the publication leaves out.

_ASK_SECONDS = 0.2
_WANTED_KINDS = frozenset((b"B", b"C", b"T"))
_KEEPALIVE = b"k"


class Truncates:
    """Reads the slot as far as necessary, and remembers each table's first TRUNCATE. For one thread. A call that failed
    may be repeated; reading continues where it ended."""

    def __init__(
        self,
        source: SourceServer,
        worker: str,
        slot: str,
        publications: tuple[str, ...],
        start: Boundary,
        runtime: Runtime = THREADS,
    ) -> None:
        self._runtime = runtime
        self._source = source
        self._worker = worker
        self._slot = slot
        self._publications = publications
        self._read_to = start
        self._ends: dict[int, Boundary] = {}
        self._transaction: set[int] | None = None

    def first_of(self, relation: int, stopped: Callable[[], bool]) -> Boundary | None:
        """Returns the end of the first transaction since the snapshot that truncated the relation; None if no
        transaction that has committed by now did, or when `stopped`."""
        if relation not in self._ends:
            with self._source.session(self._worker) as session:
                until = session.inserted_position()
            self._read(relation, until, stopped)
        return self._ends.get(relation)

    def _read(self, relation: int, until: Boundary, stopped: Callable[[], bool]) -> None:
        start, self._transaction = self._read_to, None
        with self._source.stream(self._worker, self._slot, self._publications, binary=True, start=start) as stream:
            feedback = Feedback(self._runtime.monotonic(), stream.sender_timeout)
            while self._read_to < until and relation not in self._ends and not stopped():
                payloads = stream.receive(min(_ASK_SECONDS, feedback.due_in(self._runtime.monotonic(), START)))
                self._take(payloads, feedback)
                now = self._runtime.monotonic()
                if feedback.flooded_for(now) is not None:
                    raise PgetlError(ErrorKind.CONNECTION, "The source is shutting down; the copy releases its slot.")
                if not payloads or feedback.due(now, START):
                    stream.send_feedback(START, reply_requested=not payloads)
                    feedback.sent(now, START)

    def _take(self, payloads: Iterable[bytes], feedback: Feedback) -> None:
        for payload in payloads:
            if payload[:1] != _KEEPALIVE and payload[KIND] not in _WANTED_KINDS:
                continue
            match decode(payload):
                case Keepalive() as keepalive:
                    feedback.heard(self._runtime.monotonic(), keepalive)
                    if self._transaction is None:
                        self._read_to = max(self._read_to, keepalive.position)
                case Begin():
                    self._transaction = set()
                case TruncateMessage(relations) if self._transaction is not None:
                    self._transaction.update(relations)
                case Commit(end=end):
                    self._note(self._transaction or (), end)
                case _:
                    pass

    def _note(self, truncated: Iterable[int], end: Boundary) -> None:
        for relation in truncated:
            self._ends.setdefault(relation, end)
        self._transaction = None
        self._read_to = max(self._read_to, end)


# -- The progress of each table of a copy. Pure. -----------------------------------------------------------------------


@dataclass
class TableCopy:
    """The progress of one table, from the moment when its ranges are planned."""

    table: TableName
    target: Target
    attempt: int
    tasks: Sequence[RangeTask]
    rows: int = 0
    bytes_done: int = 0
    rewritten: bool = False
    _waiting: dict[int, RangeTask] = field(init=False)

    def __post_init__(self) -> None:
        self._waiting = {task.number: task for task in self.tasks}

    @property
    def bytes_total(self) -> int:
        return sum(task.size for task in self.tasks)

    @property
    def complete(self) -> bool:
        return not self._waiting

    def stored(self, outcome: RangeOutcome) -> None:
        """Records the outcome of a range. A second outcome of the same range changes nothing."""
        task = self._waiting.pop(outcome.number, None)
        if task is not None:
            self.rows += outcome.rows
            self.rewritten |= outcome.rewritten
            self.bytes_done += task.size

    @property
    def progress(self) -> CopyProgressed:
        return CopyProgressed(self.table, self.attempt, self.bytes_done, self.bytes_total, self.rows)


def largest_first(copies: Iterable[TableCopy]) -> list[RangeTask]:
    """Returns all ranges in the best order to start them: large ranges first, so that none runs alone at the end.
    Ranges of equal size are ordered by table, so that tables are complete early."""
    ordered = sorted(copies, key=lambda copy: (-copy.bytes_total, copy.table))
    return sorted((task for copy in ordered for task in copy.tasks), key=lambda task: -task.size)


# -- The steps of one group's copy in the destination and in the store. ------------------------------------------------
#
# If the destination copies atomically, the old table remains until the new one is published. If it does not, the old
# table is dropped first. The store deletes its record of the old table only after that, so that a drop that has to be
# repeated still finds what to drop.


@dataclass(frozen=True, slots=True)
class Staging:
    """Used by the thread of the copy's driver. Every step may be repeated."""

    destination: Destination
    store: Store
    attempt: int
    boundary: Boundary

    def announce(self, targets: Collection[Target]) -> None:
        """Announces the copies to the destination, before `begin_table` is called for each table."""
        if isinstance(self.destination, AtomicCopy):
            self.destination.announce_copies(targets, self.attempt)

    def begin_table(self, table: TableName, target: Target) -> None:
        """Makes the destination ready for the rows of one table."""
        if isinstance(self.destination, AtomicCopy):
            self.destination.begin_copy(target, self.attempt)
        else:
            self.destination.drop_table_for_copy(self._earlier(table) or target.schema)

    def record_found(self, found: Collection[tuple[PublishedTable, Target]]) -> None:
        """Records in the store what was found of the tables in the snapshot."""
        tables = {
            published.table: FoundTable(
                published.schema.relation,
                published.membership,
                self.boundary,
                published.schema,
                DestinationMetadata(target.schema.table, self.boundary, applied=False),
            )
            for published, target in found
        }
        self.store.begin_copies(tables)

    def make_empty(self, target: Target) -> None:
        """Creates the table in the destination even if it has no rows."""
        if not isinstance(self.destination, RangeCopy | RangeRows):
            self.destination.write_table_rows(target.schema, no_rows(target.schema))

    def publish(self, target: Target, ranges: int | None) -> None:
        if isinstance(self.destination, AtomicCopy):
            self.destination.finish_copy(target, self.attempt, self.boundary, ranges)

    def record_published(self, copies: Mapping[TableName, TableCopy]) -> None:
        """Records in the store, for each table, how many rows the source sent and the destination stored, and how many
        bytes of the table's heap were read for them."""
        self.store.store_places({table: self._place(copy) for table, copy in copies.items()})

    def _place(self, copy: TableCopy) -> DestinationMetadata:
        details = {"rows": copy.rows, "bytes": copy.bytes_done}
        return DestinationMetadata(copy.target.schema.table, self.boundary, True, details)

    def abort(self, target: Target) -> None:
        if isinstance(self.destination, AtomicCopy):
            self.destination.abort_copy(target, self.attempt)

    def _earlier(self, table: TableName) -> TableSchema | None:
        """Returns the table's latest schema known to the store, under the table's name in the destination."""
        versions = self.store.schemas().get(table)
        place = self.store.destination_metadata(table)
        if not versions or place is None:
            return None
        return replace(versions[max(versions)], table=place.destination)


# -- The copy of a group's tables. -------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

T = TypeVar("T")

_RECORD_SECONDS = 0.3


class TablesCopy:
    """Copies the tables of one group. `truncates` finds a table's TRUNCATE in the slot; it is None if no stream
    follows the copy. `over` returns whether the attempt has ended; then nothing more is begun or published."""

    def __init__(
        self,
        claims: Claims,
        staging: Staging,
        truncates: Truncates | None,
        observer: Observer,
        patience: float,
        over: Callable[[], bool],
        runtime: Runtime = THREADS,
    ) -> None:
        self._claims = claims
        self._staging = staging
        self._truncates = truncates
        self._observer = observer
        self._patience = patience
        self._over = over
        self._runtime = runtime
        self._begun: dict[TableName, TableCopy] = {}
        self._incomplete: set[TableName] = set()
        self._unrecorded: dict[TableName, Boundary] = {}
        self._record_at = 0.0

    def begin(
        self,
        found: Sequence[tuple[PublishedTable, Target]],
        range_bytes: int,
        rules: Mapping[TableName, TableRules | None] = MappingProxyType({}),
    ) -> None:
        """Plans the tables' ranges and makes the destination ready for their rows. `rules`: how the values of tables
        are transformed."""
        self._persistently(lambda: self._staging.announce([target for _, target in found]))
        for published, target in found:
            if self._over():
                return
            ranges = plan_ranges(published.leaves, range_bytes)
            how = rules.get(published.table)
            tasks = [RangeTask(published.schema, published.row_filter, one, target, how) for one in ranges]
            self._begun[published.table] = TableCopy(published.table, target, self._staging.attempt, tasks)
            with _Blame(self._claims, published.table):
                self._persistently(partial(self._staging.begin_table, published.table, target))
        roomy = [(published, target) for published, target in found if self._claims.holds(published.table)]
        self._persistently(lambda: self._staging.record_found(roomy))
        for published, target in roomy:
            with _Blame(self._claims, published.table):
                self._persistently(partial(self._staging.make_empty, target))
                reach("copy.begun")
                self._observer(self._begun[published.table].progress)
        self._incomplete = {copy.table for copy in self._held if not copy.complete}

    def run(self, runner: RangeRunner, endpoints: Endpoints, all_read: Callable[[], None]) -> None:
        """Has all ranges moved, and publishes each table with its last one. Calls `all_read` when no range is left to
        read, though tables may still have to be published."""
        try:
            self._settle(self._held, all_read)
            with closing(runner.run(endpoints, largest_first(self._held), self._wanted)) as outcomes:
                self._receive(outcomes, all_read)
        except Exception:
            with suppress(PgetlError):
                self._record()
            raise
        self._record()

    def _receive(self, outcomes: Outcomes, all_read: Callable[[], None]) -> None:
        for outcome in outcomes:
            if self._over():
                return
            if outcome is not None and self._claims.holds(outcome.table):
                self._take(outcome, self._begun[outcome.table])
                self._settle([self._begun[outcome.table]], all_read)
            if outcome is None or self._runtime.monotonic() >= self._record_at:
                self._record()

    def abort_rest(self) -> None:
        """Removes what was staged of tables that were not published."""
        for copy in self._begun.values():
            if copy.table not in self._claims.published:
                self._abort(copy)

    @property
    def _held(self) -> list[TableCopy]:
        return [copy for copy in self._begun.values() if self._claims.holds(copy.table)]

    def _wanted(self, task: RangeTask) -> bool:
        return self._claims.holds(task.table) and not self._over()

    def _take(self, outcome: RangeOutcome, copy: TableCopy) -> None:
        with _Blame(self._claims, copy.table):
            if outcome.failure is not None:
                raise outcome.failure.error
            copy.stored(outcome)
            reach("copy.range_stored")
            self._observer(copy.progress)

    def _settle(self, copies: list[TableCopy], all_read: Callable[[], None]) -> None:
        """Publishes the tables that are complete, and removes at once what was staged of those that failed."""
        self._incomplete -= {copy.table for copy in copies if copy.complete or not self._claims.holds(copy.table)}
        if not self._incomplete:
            all_read()
        for copy in copies:
            if not self._claims.holds(copy.table):
                self._abort(copy)
            elif copy.complete and not self._over():
                self._publish(copy)

    def _publish(self, copy: TableCopy) -> None:
        with _Blame(self._claims, copy.table):
            whole_from = self._persistently(lambda: self._whole_from(copy))
            if self._over() or not self._claims.confirm(copy.table):
                return
            reach("copy.publishing")
            # A range that found another file has stored nothing.
            ranges = None if copy.rewritten else len(copy.tasks)
            self._persistently(lambda: self._staging.publish(copy.target, ranges))
            reach("copy.published")
            if not self._unrecorded:
                self._record_at = self._runtime.monotonic() + _RECORD_SECONDS
            self._unrecorded[copy.table] = whole_from

    def _record(self) -> None:
        """Records in the store the tables that were published since the last call. A table that is not recorded is
        copied again."""
        unrecorded, self._unrecorded = self._unrecorded, {}
        if not unrecorded:
            return
        copies = {table: self._begun[table] for table in unrecorded}
        self._persistently(lambda: self._staging.record_published(copies))
        self._claims.finish(unrecorded)
        reach("copy.finished")

    def _whole_from(self, copy: TableCopy) -> Boundary:
        """Returns the position from which on the table can equal the source. That is the snapshot's position, unless a
        range found another file. Then it is the end of a TRUNCATE in the stream, after which nothing depends on the
        rows that the copy lacks."""
        if not copy.rewritten:
            return self._staging.boundary
        relation = copy.tasks[0].source.relation
        found = None if self._truncates is None else self._truncates.first_of(relation, self._over)
        if found is None and not self._over():
            raise Rewritten(copy.table)
        reach("copy.truncate_found")
        return found or self._staging.boundary

    def _persistently(self, step: Callable[[], T]) -> T:
        return persistently(step, self._over, self._patience, self._runtime)

    def _abort(self, copy: TableCopy) -> None:
        try:
            self._staging.abort(copy.target)
        except PgetlError as error:
            # The next attempt removes it.
            message = f"What was staged of {written(copy.table)} could not be removed now: {error.message}"
            self._observer(Noted("warning", message, copy.table))


class _Blame:
    """A context in which an error that concerns only this table fails the table and is not raised. An exception that is
    not a `PgetlError` counts as such an error."""

    def __init__(self, claims: Claims, table: TableName) -> None:
        self._claims = claims
        self._table = table

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception) and not isinstance(error, PgetlError):
            log.error("The copy of %s failed", self._table, exc_info=error)
            error = unforeseen(f"The copy of {self._table}", error, str(self._table))
        if not isinstance(error, PgetlError) or not error.concerns_one_table:
            return False
        self._claims.fail(self._table, error)
        return True
