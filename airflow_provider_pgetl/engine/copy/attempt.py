"""The copy of one group, from the claims in the store to the publication of the last table.

    DataSync ─▶ slot with exported snapshot ─▶ schemas read in it ─▶ ranges ─▶ publication, table by table

Invariants
* The slot is created before any table is read, and its session then does nothing until all ranges are read: the
  snapshot exists only as long as that session does. So everything before the consistent point is in the snapshot,
  everything after it in the slot.
* Slot and staging are named by the attempt; a later attempt never meets what an earlier one left.
* A table is published as soon as its own ranges are stored, by one atomic step of the destination, at the consistent
  point; the store records it afterwards. If that record is lost, the table is copied again: a copy that the store has
  not recorded never counts.
* If a range of a table finds another file than the snapshot's, the table is published with the rows it has only if the
  slot contains a TRUNCATE of it. FinishedCopy then records the end of that TRUNCATE; its catch-up may not ask for a
  hand-over before that position.
* A failure that concerns one table ends the copy of that table. An error of a server ends the attempt, for all tables
  not published yet. Either way the tables become Errored in the store, with the time of the next attempt if there is
  one.
* An attempt that is over (considered dead, or asked to stop) publishes nothing more, removes what it staged, and leaves
  its tables in DataSync, from where the next attempt takes them.
* The slot remains if a published table needs it for its catch-up, and is dropped in every other case.

This module does not decide which tables form a group, does not retry, and does not end other attempts. A driver that is
killed leaves slot and staging behind; `prepare` drops the slot, and the next attempt removes the staging.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyResult
from airflow_provider_pgetl.engine.config.secrets import resolve
from airflow_provider_pgetl.engine.config.spec import PipelineSpec
from airflow_provider_pgetl.engine.context import PostgresSource, SourceServer
from airflow_provider_pgetl.engine.copy.claims import Claims
from airflow_provider_pgetl.engine.copy.ranges import Endpoints
from airflow_provider_pgetl.engine.copy.runners import LocalRunner, RangeRunner
from airflow_provider_pgetl.engine.copy.table_copy import Staging, TablesCopy, Truncates
from airflow_provider_pgetl.engine.destinations.protocol import Destination, Positions
from airflow_provider_pgetl.engine.model.errors import ErrorData, PgetlError, unforeseen
from airflow_provider_pgetl.engine.model.phases import needs_group_slot
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import Noted, Observer, nobody
from airflow_provider_pgetl.engine.model.tables import written
from airflow_provider_pgetl.engine.runtime.processes import reach
from airflow_provider_pgetl.engine.runtime.threads import PATIENCE, THREADS, Flag, Renewal, Runtime, persistently
from airflow_provider_pgetl.engine.source.catalog import PublishedTable
from airflow_provider_pgetl.engine.source.publication import publication_names
from airflow_provider_pgetl.engine.source.range_reading import ExportedSnapshot
from airflow_provider_pgetl.engine.source.slots import CreatedSlot, copy_slot
from airflow_provider_pgetl.engine.state.store import StateStore, Store
from airflow_provider_pgetl.engine.transform.rules import TableRules, expect_covered, rules_of
from airflow_provider_pgetl.engine.transform.tables import Transforms, fingerprint_of, rules_changed

# -- The heartbeat of a copy attempt, and the signal that the attempt is over. -----------------------------------------
#
# The store considers an attempt alive for a limited time, which each heartbeat extends. When the store answers that the
# attempt is over, or has not answered for as long as the attempt is considered alive, `over` is set: from then on
# others may consider the attempt dead, and it publishes nothing more. A request to stop sets `over` too.

ATTEMPT_SECONDS = 60.0
_BEATS_PER_LIFE = 4


class Heartbeat:
    """Sends heartbeats while the context manager is entered."""

    def __init__(
        self, store: StateStore, attempt: int, ttl: float = ATTEMPT_SECONDS, runtime: Runtime = THREADS
    ) -> None:
        def beat() -> bool:
            return store.beat_attempt(attempt, ttl)

        self._renewal = Renewal(f"Copy attempt {attempt}", beat, self._lost, ttl, _BEATS_PER_LIFE, runtime)
        self.over = runtime.flag()
        self.why = ""

    def __enter__(self) -> Self:
        self._renewal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewal.stop()

    def end(self, why: str) -> None:
        """Marks the attempt as over; the first reason is kept."""
        self.why = self.why or why
        self.over.set()

    def _lost(self, error: PgetlError | None) -> None:
        if error is None:
            self.end("it was given up for dead")
        else:
            self.end("the store could not be reached" if error.transient else error.message)


# -- Attempt. ----------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

_LOOK_UP_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Settings:
    """`slot_patience`: seconds to wait for open writing transactions at the source. `patience`: seconds for which
    transient trouble with a server is retried. `attempt_ttl`: seconds for which the store considers an attempt alive
    after a heartbeat."""

    slot_patience: float = 60.0
    patience: float = PATIENCE
    attempt_ttl: float = ATTEMPT_SECONDS


@dataclass(frozen=True, slots=True)
class CopyServers:
    """Access of a copy to the source and the destination."""

    source: SourceServer
    opened_destination: Callable[[Endpoints], AbstractContextManager[Destination]]

    @classmethod
    def resolved(cls, spec: PipelineSpec, store: Store) -> CopyServers:
        source = PostgresSource(resolve(spec.source.uri), spec.id, store.pipeline().instance)
        return cls(source, lambda endpoints: endpoints.resolved().opened_destination())


def copy_group(
    job: CopyJob,
    store: Store,
    runner: RangeRunner,
    observer: Observer = nobody,
    stop: Flag | None = None,
    settings: Settings = Settings(),
    access: CopyServers | None = None,
    runtime: Runtime = THREADS,
) -> CopyResult:
    """Copies the job's tables from one snapshot. Errors are in the result; raises only if the store is unreachable."""
    attempt = job.attempt or persistently(
        lambda: store.start_attempt(settings.attempt_ttl, runtime.process()), runtime=runtime
    )
    with Heartbeat(store, attempt, settings.attempt_ttl, runtime) as heartbeat:
        try:
            return _Attempt(job, store, runner, observer, settings, attempt, heartbeat, stop, access, runtime).run()
        finally:
            store.end_attempt(attempt)


class _Attempt:
    """One attempt to copy one group."""

    def __init__(
        self,
        job: CopyJob,
        store: Store,
        runner: RangeRunner,
        observer: Observer,
        settings: Settings,
        attempt: int,
        heartbeat: Heartbeat,
        stop: Flag | None,
        access: CopyServers | None,
        runtime: Runtime,
    ) -> None:
        self._runtime = runtime
        self._job = job
        self._spec = job.spec
        self._store = store
        self._runner = runner
        self._observer = observer
        self._settings = settings
        self._attempt = attempt
        self._heartbeat = heartbeat
        self._stop = stop
        self._asked = {table.source: table for table in job.tables}
        self._claims = Claims(store, attempt, observer, settings.patience, runtime)
        self._slot = copy_slot(self._spec.id, store.pipeline().instance, attempt)
        self._access = access or CopyServers.resolved(self._spec, store)
        self._boundary: Boundary | None = None

    def run(self) -> CopyResult:
        failure = None
        self._claims.start(self._asked)
        if self._claims.held:
            try:
                self._copy()
            except PgetlError as error:
                failure = self._fail(error)
            except Exception as defect:  # otherwise the tables would be copied again and again, silently
                log.exception("Copy attempt %d failed", self._attempt)
                failure = self._fail(unforeseen(f"Copy attempt {self._attempt}", defect))
        for table in self._claims.held:
            self._claims.leave_out(
                table, f"The attempt ended before {written(table)} was copied: {self._heartbeat.why}."
            )
        return self._result(failure)

    def _fail(self, error: PgetlError) -> ErrorData:
        self._claims.fail_all(error)
        return ErrorData.of(error)

    def _result(self, failure: ErrorData | None) -> CopyResult:
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
            with self._access.source.exported_snapshot(
                self._attempt, self._slot, self._settings.slot_patience
            ) as exported:
                self._boundary = exported.created.consistent_point
                reach("copy.slot_created")
                self._copy_from(exported)
        finally:
            self._settle_slot()

    @property
    def _slot_needed(self) -> bool:
        return bool(self._claims.published) and not self._job.snapshot_only

    def _settle_slot(self) -> None:
        if self._slot_needed:
            return
        try:
            if not self._job.snapshot_only and self._is_depended_on():
                return
            self._access.source.drop_group_slot(self._attempt, self._slot)
        except PgetlError as error:
            # This does not fail the attempt: `prepare` drops a slot that no phase needs.
            self._observer(Noted("warning", f"The slot {self._slot} could not be dropped now: {error.message}"))

    def _is_depended_on(self) -> bool:
        """Returns whether a table in the store needs this attempt's slot. A table may be published without this attempt
        having recorded it: the store's answer was lost, and the table was rolled back to its finished copy before the
        event was sent again and refused."""
        self._store.load()
        states = (record.state for record in self._store.tables().values())
        return any(state.attempt == self._attempt and needs_group_slot(state) for state in states)

    def _copy_from(self, exported: ExportedSnapshot) -> None:
        endpoints = self._endpoints(exported.created)
        with self._access.opened_destination(endpoints) as destination:
            if not isinstance(destination, Positions):
                self._await_streams()
            staging = Staging(destination, self._store, self._attempt, exported.created.consistent_point)
            patience, truncates = self._settings.patience, self._truncates(exported.created)
            tables = TablesCopy(
                self._claims, staging, truncates, self._observer, patience, lambda: self._over, self._runtime
            )
            try:
                rules = self._ruled(self._read(exported.created))
                found = [(published, self._target(published, each)) for published, each in rules]
                tables.begin(found, self._spec.copy.range_bytes, {one.table: each for one, each in rules})
                tables.run(self._runner, endpoints, exported.release)
            finally:
                tables.abort_rest()

    def _truncates(self, created: CreatedSlot) -> Truncates | None:
        if self._job.snapshot_only:
            return None
        worker, publications = f"c{self._attempt} truncates", publication_names(self._spec)
        start = created.consistent_point
        return Truncates(self._access.source, worker, created.name, publications, start, self._runtime)

    def _await_streams(self) -> None:
        """Waits for late writes of the streams. Without positions in the destination, no fence keeps such a write from
        being applied on top of the copy."""
        while not self._over and self._claims.awaits_a_stream():
            self._runtime.sleep(_LOOK_UP_SECONDS)

    def _endpoints(self, created: CreatedSlot) -> Endpoints:
        return Endpoints(
            self._spec.id,
            self._attempt,
            created.snapshot,
            self._spec.source.uri,
            self._spec.destination,
            self._spec.destination.uri,
            self._settings.patience,
            position=created.consistent_point,
            transform_keys={reference: reference for reference in self._spec.transform_keys},
        )

    def _ruled(self, tables: Sequence[PublishedTable]) -> list[tuple[PublishedTable, TableRules | None]]:
        """Returns the tables, each with the rules that transform its values. A table whose rules do not fit, or have
        changed since its copy was prepared, fails before anything is read."""
        transforms, records = Transforms.resolved(self._spec, os.environ), self._store.tables()
        found = []
        for one in tables:
            selection = records[one.table].selection if one.table in records else None
            try:
                if selection is not None and selection.transform != fingerprint_of(transforms, one.table):
                    raise rules_changed(one.table)
                versions = self._store.schemas().get(one.table, {})
                before = versions[max(versions)] if versions else None
                expect_covered(self._spec, one.table, before, one.schema)
                found.append((one, rules_of(self._spec, one.table, one.schema)))
            except PgetlError as error:
                self._claims.fail(one.table, error)
        return found

    def _target(self, published: PublishedTable, rules: TableRules | None) -> Target:
        asked = self._asked[published.table]
        there = replace(published.schema, table=asked.destination, as_text=rules is not None)
        return Target(self._spec.id, there, self._claims.generation(published.table), asked.replaces)

    def _read(self, created: CreatedSlot) -> tuple[PublishedTable, ...]:
        return self._access.source.read_published(
            self._attempt,
            created.snapshot,
            publication_names(self._spec),
            sorted(self._claims.held),
            self._claims.fail,
        )


# -- A copy in a thread of this process, for destinations that are in its memory. --------------------------------------


class LocalCopy:
    """The copy starts when the object is created."""

    def __init__(self, job: CopyJob, store: Store, observer: Observer) -> None:
        self._job = job
        self._store = store
        self._observer = observer
        self._stop = threading.Event()
        self._result: CopyResult | None = None
        self._thread = threading.Thread(target=self._run, name="pgetl copy", daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> CopyResult | None:
        self._thread.join(timeout)
        return None if self._thread.is_alive() else self._ended()

    def stop(self, grace: float) -> CopyResult:
        """A thread cannot be killed; the attempt number fences what the thread still does after `grace` seconds."""
        self._stop.set()
        self._thread.join(grace)
        return self._ended()

    def _ended(self) -> CopyResult:
        return self._result or CopyResult(0)

    def _run(self) -> None:
        try:
            self._result = copy_group(self._job, self._store, LocalRunner(), self._observer, self._stop)
        except PgetlError as error:
            self._result = CopyResult(0, failure=ErrorData.of(error))
        except Exception as defect:  # otherwise the copy would look as if it had ended well
            log.exception("A copy failed")
            self._result = CopyResult(0, failure=ErrorData.of(unforeseen("A copy", defect)))
