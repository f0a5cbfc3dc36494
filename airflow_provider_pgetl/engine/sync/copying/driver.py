"""The copy of one group, from the first word in the store to the last table published.

    DataSync ─▶ slot with exported snapshot ─▶ schemas read in it ─▶ ranges ─▶ publication, table by table

What it keeps
* The slot is made before any table is read, and its session then does nothing until all ranges are done: the snapshot
  lives and dies with it. So everything before the consistent point is in the snapshot, everything after it in the slot.
* Slot and staging are named by the attempt; a later attempt never meets what an earlier one left.
* A table is published as soon as its own ranges are in, by one atomic step of the destination, at the consistent point;
  the store hears of it afterwards. If the word is lost the table is copied again: what was not copied never counts.
* A failure that concerns one table ends that table; trouble with a server ends the attempt, for all tables not
  published yet. Both are Errored in the store, with the time of the next attempt where there is one.
* An attempt that is over (given up for dead, asked to stop) publishes nothing more, takes away what it staged, and
  leaves its tables in DataSync, from where the next attempt takes them.
* The slot stays if a table that was published needs it for its catch-up, and is dropped in every other case.

What it does not do: decide which tables form a group, try again, or end other attempts. A driver that is killed leaves
slot and staging behind; the slot is swept by prepare, the staging by the next attempt.
"""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.failpoints import reach
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.processes import this_process
from airflow_provider_pgetl.engine.reports import Noted, Observer, nobody
from airflow_provider_pgetl.engine.secrets import resolve
from airflow_provider_pgetl.engine.source.catalog import PublishedTable
from airflow_provider_pgetl.engine.source.connecting import worker_name
from airflow_provider_pgetl.engine.source.publication import publication_names
from airflow_provider_pgetl.engine.source.ranges import plan_ranges
from airflow_provider_pgetl.engine.source.slot_creation import CreatedSlot
from airflow_provider_pgetl.engine.source.slot_names import copy_slot
from airflow_provider_pgetl.engine.state.protocol import Store
from airflow_provider_pgetl.engine.sync.copying.book import TableCopy, largest_first
from airflow_provider_pgetl.engine.sync.copying.claims import Claims
from airflow_provider_pgetl.engine.sync.copying.failing import concerns_one_table
from airflow_provider_pgetl.engine.sync.copying.heartbeat import ATTEMPT_SECONDS, Heartbeat
from airflow_provider_pgetl.engine.sync.copying.job import CopyJob
from airflow_provider_pgetl.engine.sync.copying.outcome import CopyResult, Failure
from airflow_provider_pgetl.engine.sync.copying.retrying import persistently
from airflow_provider_pgetl.engine.sync.copying.runners import RangeRunner
from airflow_provider_pgetl.engine.sync.copying.snapshot import drop_group_slot, exported_snapshot, read_published
from airflow_provider_pgetl.engine.sync.copying.staging import Staging
from airflow_provider_pgetl.engine.sync.copying.transfer import Endpoints, Outcome, RangeTask
from airflow_provider_pgetl.engine.tables import TableName


@dataclass(frozen=True, slots=True)
class Settings:
    """`patience`: seconds to wait for the source's open writing transactions. `attempt_ttl`: for how long the store
    takes a silent attempt for alive."""

    patience: float = 60.0
    attempt_ttl: float = ATTEMPT_SECONDS


def copy_group(
    job: CopyJob,
    store: Store,
    runner: RangeRunner,
    observer: Observer = nobody,
    stop: threading.Event | None = None,
    settings: Settings = Settings(),
) -> CopyResult:
    """Copy the job's tables from one snapshot. What goes wrong is in the result; raises if the store is away."""
    attempt = persistently(lambda: store.start_attempt(settings.attempt_ttl, this_process()))
    with Heartbeat(store, attempt, settings.attempt_ttl) as heartbeat:
        try:
            return _Attempt(job, store, runner, observer, settings, attempt, heartbeat, stop).run()
        finally:
            store.end_attempt(attempt)


class _Attempt:
    """One attempt at one group."""

    def __init__(
        self,
        job: CopyJob,
        store: Store,
        runner: RangeRunner,
        observer: Observer,
        settings: Settings,
        attempt: int,
        heartbeat: Heartbeat,
        stop: threading.Event | None,
    ) -> None:
        self._job = job
        self._spec = job.spec
        self._store = store
        self._runner = runner
        self._observer = observer
        self._settings = settings
        self._attempt = attempt
        self._heartbeat = heartbeat
        self._stop = stop
        self._places = {table.source: table.destination for table in job.tables}
        self._claims = Claims(store, attempt, observer)
        self._slot = copy_slot(self._spec.id, store.pipeline().instance, attempt)
        self._source = resolve(self._spec.source.uri)
        self._boundary: Boundary | None = None

    def run(self) -> CopyResult:
        failure = None
        self._claims.start(self._places)
        if self._claims.held:
            try:
                self._copy()
            except PgetlError as error:
                self._claims.fail_all(error)
                failure = Failure.of(error)
        for table in self._claims.held:
            self._claims.leave_out(table, f"The attempt ended before {table} was copied: {self._heartbeat.why}.")
        return self._result(failure)

    def _result(self, failure: Failure | None) -> CopyResult:
        claims = self._claims
        slot = self._slot if self._slot_needed else None
        return CopyResult(
            self._attempt, tuple(claims.published), claims.failed, claims.left_out, self._boundary, slot, failure
        )

    @property
    def _over(self) -> bool:
        if self._stop is not None and self._stop.is_set():
            self._heartbeat.end("it was asked to stop")
        return self._heartbeat.over.is_set()

    # -- slot and snapshot --------------------------------------------------------------------------------------------

    def _copy(self) -> None:
        try:
            with exported_snapshot(
                self._source, self._spec.id, self._attempt, self._slot, self._settings.patience
            ) as created:
                self._boundary = created.consistent_point
                reach("copy.slot_created")
                self._copy_from(created)
        finally:
            self._settle_slot()

    @property
    def _slot_needed(self) -> bool:
        return bool(self._claims.published) and not self._job.snapshot_only

    def _settle_slot(self) -> None:
        if self._slot_needed:
            return
        try:
            drop_group_slot(self._source, self._spec.id, self._attempt, self._slot)
        except PgetlError as error:
            # Not worth failing for: prepare finds a slot that no phase needs.
            self._note("warning", f"The slot {self._slot} could not be dropped now: {error.message}")

    def _copy_from(self, created: CreatedSlot) -> None:
        endpoints = Endpoints(
            self._spec.id,
            self._attempt,
            created.snapshot,
            self._spec.source.uri,
            self._spec.destination,
            self._spec.destination.uri,
        )
        with endpoints.resolved().opened_destination() as destination:
            staging = Staging(destination, self._store, self._attempt, created.consistent_point)
            begun: dict[TableName, TableCopy] = {}
            try:
                for published in self._read(created):
                    self._begin(published, staging, begun)
                self._run(endpoints, staging, begun)
            finally:
                for copy in begun.values():
                    self._abort(copy, staging)

    # -- tables -------------------------------------------------------------------------------------------------------

    def _read(self, created: CreatedSlot) -> tuple[PublishedTable, ...]:
        return read_published(
            self._source,
            worker_name(self._spec.id, f"c{self._attempt}"),
            created.snapshot,
            publication_names(self._spec),
            sorted(self._claims.held),
            self._claims.fail,
        )

    def _begin(self, published: PublishedTable, staging: Staging, begun: dict[TableName, TableCopy]) -> None:
        """Plan the table's ranges and make room for its rows."""
        table, schema = published.table, published.schema
        target = Target(self._spec.id, replace(schema, table=self._places[table]), self._claims.generation(table))
        ranges = plan_ranges(published.leaves, self._spec.copy.range_bytes)
        tasks = [RangeTask(schema, published.row_filter, one, target) for one in ranges]
        copy = TableCopy(table, target, self._attempt, tasks)
        begun[table] = copy
        with _Blame(self._claims, table):
            persistently(lambda: staging.begin(published, target))
            reach("copy.begun")
            self._observer(copy.progress)

    def _run(self, endpoints: Endpoints, staging: Staging, begun: dict[TableName, TableCopy]) -> None:
        for copy in begun.values():
            self._publish_if_complete(copy, staging)
        ranges = largest_first(copy for copy in begun.values() if self._claims.holds(copy.table))
        with closing(self._runner.run(endpoints, ranges, self._wanted)) as outcomes:
            for outcome in outcomes:
                if self._over:
                    return
                if outcome is not None and self._claims.holds(outcome.table):
                    self._take(outcome, begun[outcome.table], staging)

    def _wanted(self, task: RangeTask) -> bool:
        return self._claims.holds(task.table) and not self._over

    def _take(self, outcome: Outcome, copy: TableCopy, staging: Staging) -> None:
        with _Blame(self._claims, copy.table):
            if outcome.failure is not None:
                raise outcome.failure.error
            copy.stored(outcome)
            reach("copy.range_stored")
            self._observer(copy.progress)
            self._publish_if_complete(copy, staging)
        if not self._claims.holds(copy.table):
            self._abort(copy, staging)

    def _publish_if_complete(self, copy: TableCopy, staging: Staging) -> None:
        if not copy.complete or not self._claims.holds(copy.table) or self._over:
            return
        with _Blame(self._claims, copy.table):
            if self._claims.confirm(copy.table):
                reach("copy.publishing")
                persistently(lambda: staging.publish(copy.table, copy.target, copy.rows), lambda: self._over)
                reach("copy.published")
                self._claims.finish(copy.table, staging.boundary)
                reach("copy.finished")

    def _abort(self, copy: TableCopy, staging: Staging) -> None:
        """Take away what was staged; of a table that is published, nothing is staged any more."""
        try:
            staging.abort(copy.target)
        except PgetlError as error:
            # The next attempt takes it away.
            self._note("warning", f"What was staged of {copy.table} could not be removed now: {error.message}")

    def _note(self, level: Literal["info", "warning"], message: str) -> None:
        self._observer(Noted(level, message))


class _Blame:
    """Within it, an error that concerns this table alone ends the table, and nothing else."""

    def __init__(self, claims: Claims, table: TableName) -> None:
        self._claims = claims
        self._table = table

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, PgetlError) or not concerns_one_table(error):
            return False
        self._claims.fail(self._table, error)
        return True
