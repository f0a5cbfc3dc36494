"""The operations on a pipeline, as used by the command line, the tasks of a DAG, and other programs.

    prepare ─▶ copy (groups, bounded) ─▶ stream ─▶ merge          run = all of them, in one process tree

A `Pipeline` resolves the secrets of its specification and opens its store when an operation first needs them. It holds
no other state: everything that outlives an operation is in the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property

from airflow_provider_pgetl.engine.changes.versions import changes_between
from airflow_provider_pgetl.engine.config.jobs import CopyJob, MergeJob, MergeResult
from airflow_provider_pgetl.engine.config.secrets import resolve, resolve_all
from airflow_provider_pgetl.engine.config.spec import PipelineSpec
from airflow_provider_pgetl.engine.config.validation import suggestion
from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.copy.admission import CopyPool, Launch, admitted_copy
from airflow_provider_pgetl.engine.copy.attempt import LocalCopy
from airflow_provider_pgetl.engine.destinations.protocol import (
    Destination,
    Merging,
    opened_destination,
    resolved_options,
)
from airflow_provider_pgetl.engine.merging import LaunchMerge, awaited, backlog, is_merged
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Finding, PgetlError
from airflow_provider_pgetl.engine.model.phases import (
    Errored,
    Event,
    PhaseName,
    Refused,
    Reset,
    RolledBack,
    TableState,
    is_followed,
    phase_name,
)
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.previews import TablePreview
from airflow_provider_pgetl.engine.model.reports import Noted, Observer, nobody
from airflow_provider_pgetl.engine.model.results import (
    Measurement,
    Resolution,
    RunOutcome,
    SchemaVersion,
    Status,
    Whereabouts,
)
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema, written
from airflow_provider_pgetl.engine.model.verification import TableVerified, Verified
from airflow_provider_pgetl.engine.prepare import preparation
from airflow_provider_pgetl.engine.prepare.lifecycle import (
    await_end_of_streams,
    destroy,
    expect_no_state_elsewhere,
    expect_not_streamed,
    expect_own,
    forget_in_destination,
    is_paused,
    withdraw,
)
from airflow_provider_pgetl.engine.prepare.preparation import (
    Prepared,
    follow_declaration,
    look,
    prepare,
    take_up,
)
from airflow_provider_pgetl.engine.prepare.preview import preview
from airflow_provider_pgetl.engine.runtime.threads import Flag, never
from airflow_provider_pgetl.engine.source.connecting import connect, worker_name
from airflow_provider_pgetl.engine.source.slots import group_slots
from airflow_provider_pgetl.engine.spark.submission import COPY, MERGE, submit
from airflow_provider_pgetl.engine.state import decisions
from airflow_provider_pgetl.engine.state.decisions import states_of
from airflow_provider_pgetl.engine.state.store import CompletionStore, Store, is_stored, open_store, withdraw_unused
from airflow_provider_pgetl.engine.status_reader import read_changed_tables, read_status, read_whereabouts
from airflow_provider_pgetl.engine.stream.lease import LEASE_SECONDS
from airflow_provider_pgetl.engine.stream.worker import StreamingWorker
from airflow_provider_pgetl.engine.transform.tables import Transforms
from airflow_provider_pgetl.engine.verify.verifying import VerifyOptions, verify

__all__ = ["CompletionStore", "Pipeline", "VerifyOptions"]

_ACKNOWLEDGE_SECONDS = 20.0
_GAPS = (ErrorKind.SLOT_LOST, ErrorKind.LINEAGE)


class Pipeline:
    """A declared pipeline. References such as ``env:NAME`` are looked up in `environment`."""

    def __init__(
        self, spec: PipelineSpec, observer: Observer = nobody, environment: Mapping[str, str] = os.environ
    ) -> None:
        self.spec = spec
        self._observer = observer
        self._environment = environment

    @cached_property
    def store(self) -> Store:
        key = self.spec.state_key
        (uri,) = resolve_all({key: self.spec.state}, self._environment).values()
        return open_store(uri, self.spec.id, in_source=self.spec.state_uri is None)

    @cached_property
    def _context(self) -> PipelineContext:
        uris = resolve_all(self.spec.references, self._environment)
        return PipelineContext(
            self.spec,
            self.store,
            self._observer,
            uris["source", "uri"],
            uris.get(("destination", "uri")),
            resolved_options(self.spec.destination, self._environment),
            transforms=Transforms.resolved(self.spec, self._environment),
        )

    def close(self) -> None:
        if "store" in self.__dict__:
            self.store.close()

    # -- inspecting ----------------------------------------------------------------------------------------------------

    def check(self) -> list[Finding]:
        """Returns every problem that would prevent a run, on source, destination and state store."""
        return look(self._context)

    def status(self) -> Status:
        """Returns the state of the pipeline and its tables. Source and destination contribute what they can report now;
        the store must be reachable."""
        return read_status(
            self.spec.id,
            self.store,
            lambda: self._context.connect("status"),
            lambda: self._context.destination("status"),
        )

    def source_position(self) -> Boundary:
        """Returns a position before which everything lies that is committed at the source now."""
        with self._context.source.session("position") as session:
            return session.flushed_position()

    def states(self) -> Mapping[TableName, TableState]:
        """Returns the current state of every table, from the store."""
        self.store.load()
        return states_of(self.store)

    def since(self) -> Mapping[TableName, float]:
        """Returns when each table came to its state, by the store's clock."""
        return self.store.since()

    def now(self) -> float:
        """Returns the time of the store's clock."""
        return self.store.now()

    def measurements(self, resolution: Resolution) -> Sequence[Measurement]:
        """Returns the history of the stream, the oldest first."""
        return self.store.measurements(resolution)

    @property
    def is_streamed(self) -> bool:
        """Whether a worker holds the lease."""
        return self.store.lease() is not None

    @property
    def is_paused(self) -> bool:
        return is_paused(self.store)

    @property
    def completion_records(self) -> CompletionStore:
        """The records of an orchestrator's runs: which task completed when, and what was announced."""
        return self.store

    def whereabouts(self, table: TableName) -> Whereabouts:
        """Returns how far a table in Ready is in the destination, by what the store has recorded."""
        found = read_whereabouts(self.store, table)
        if found is None:
            raise self._unknown(table)
        return found

    def schema_versions(self, table: TableName) -> list[SchemaVersion]:
        """Returns the versions of the table's schema since it was copied, the oldest first."""
        self.store.load()
        record = self.store.tables().get(table)
        if record is None:
            raise self._unknown(table)
        versions, times = self.store.schemas().get(table, {}), self.store.schemas_recorded(table)
        found: list[SchemaVersion] = []
        before: TableSchema | None = None
        for start in sorted(versions):
            columns = ", ".join(f"{column.name} {column.sql_type}" for column in versions[start].columns)
            what = f"as copied: {columns}" if before is None else changes_between(before, versions[start])
            applied = before is None or record.mark.lsn > start.lsn
            found.append(SchemaVersion(start, times.get(start), what, applied))
            before = versions[start]
        return found

    def changed_tables(self, run: str) -> dict[TableName, str]:
        """Returns the tables in Ready whose data, as readers see it, has changed since a run other than `run` last
        announced them, each with the position to record. If the destination does not record positions, it returns every
        table in Ready."""
        with self._opened_destination("changes") as destination:
            return read_changed_tables(self.spec.id, self.store, destination, run)

    def verify(
        self,
        tables: Collection[TableName] | None = None,
        *,
        options: VerifyOptions = VerifyOptions(),
        repair: bool = False,
        stopped: Callable[[], bool] = never,
    ) -> Verified:
        """Compares tables in Ready, by default all of them, with the source, row by row, at one consistent point, while
        both sides are being written. With `repair`, tables that differ are reset and so copied again."""
        expect_own(self._context)
        for table in tables or ():
            self.state(table)
        found = verify(self._context, tables, options, stopped)
        different = [each.table for each in found.different]
        if not repair or not different:
            return found
        self.reset_all(different)
        return replace(found, repaired=different)

    def last_verified(self, tables: Collection[TableName] | None = None) -> Verified:
        """Returns what the store has of past verifications of these tables, by default of all. Source and destination
        need not be up."""
        self.store.load()
        for table in tables or ():
            self.state(table)
        chosen = sorted(self.store.tables() if tables is None else tables)
        kept = {table: self.store.verifications(table) for table in chosen}
        newest = [results[-1] if results else TableVerified.never(table) for table, results in kept.items()]
        return Verified(newest, before=[one for results in kept.values() for one in reversed(results[:-1])])

    def preview_transforms(self, table: TableName | None = None, rows: int = 5) -> list[TablePreview]:
        """Returns rows of the source before and after their transformation; writes nothing."""
        return preview(self._context, table, rows)

    # -- moving data --------------------------------------------------------------------------------------------------

    def prepare(self, *, streaming: bool = True) -> Prepared:
        """Makes source, store and destination match the declaration, or raises an error that names the remedy."""
        return prepare(self._context, streaming=streaming)

    def take_up(self, table: TableName) -> bool:
        """Registers, while the pipeline runs, a table that was declared after the pipeline was prepared. Returns
        whether the table was new."""
        self.store.load()
        if table in self.store.tables():
            return False
        take_up(self._context, table)
        return True

    def follow_declaration(self) -> None:
        """While the pipeline runs, unregisters tables that are no longer declared and registers new ones."""
        follow_declaration(self._context)

    def run(self, *, until_caught_up: bool, stop: Flag) -> RunOutcome:
        """Copies the tables that are not copied yet and streams changes, until stopped; with `until_caught_up`, until
        everything that is at the source now has arrived.

        The loss of the slot during the run is treated as at its start: it is an error, or, with `on_slot_lost =
        "resync"`, the tables are copied again. A table that is set back just when all others have arrived, by a retry
        or by a user, is brought up to date as well.
        """
        while True:
            try:
                outcome = self._run_once(until_caught_up, stop)
                if not until_caught_up or stop.is_set() or not self._on_their_way():
                    return outcome
            except PgetlError as error:
                if self.spec.source.on_slot_lost != "resync" or error.kind not in _GAPS:
                    raise
                self._observer(Noted("warning", f"Beginning anew: {error.message}"))

    def _on_their_way(self) -> list[TableName]:
        return decisions.on_their_way(states_of(self.store), self.store.now())

    def _run_once(self, until_caught_up: bool, stop: Flag) -> RunOutcome:
        prepared = self.prepare()
        ending = self._context.runtime.flag()
        pool = CopyPool(self._context, prepared, self._launch(), ending)
        pool.start()
        try:
            self.stream(until_caught_up=until_caught_up, stop=stop, pool=pool)
        finally:
            ending.set()
            pool.join()
        if pool.error is not None:
            raise pool.error
        if until_caught_up and self._lands:
            self.merge(stop=stop).expect_whole()
        return self._outcome()

    def stream(
        self,
        *,
        until_caught_up: bool,
        stop: Flag,
        pool: CopyPool | None = None,
        lease_patience: float | None = 2 * LEASE_SECONDS,
    ) -> None:
        """Runs only the streaming worker; copies run in another process, or in `pool`. While another worker holds the
        lease, waits for `lease_patience` seconds and then fails; None waits without limit."""
        expect_own(self._context)
        worker = StreamingWorker(self._context, stop)
        worker.run(
            until_caught_up=until_caught_up,
            copies_expected=lambda: pool is not None and pool.busy(),
            lease_patience=lease_patience,
        )

    def merge(self, *, stop: Flag, launch: LaunchMerge | None = None) -> MergeResult:
        """Merges the landed changes into their tables with Spark. Readers see the changes from then on."""
        if not self._lands:
            message = f"Nothing lands beside the tables of pipeline {self.spec.id}: its worker merges changes itself."
            raise PgetlError(ErrorKind.USAGE, message, remedy='Set merge = "spark" in [destination] to merge by Spark.')
        with self._opened_destination("merge") as destination:
            known = backlog(destination, self.spec.id)
            if stop.is_set() or not known:
                return MergeResult()
            result = awaited((launch or self._launch_merge())(MergeJob(self.spec)), stop)
            if result.failure is not None and is_merged(destination, self.spec.id, known):
                return replace(result, failure=None)  # the application merged everything but could not report it
            return result

    @property
    def _lands(self) -> bool:
        with self._opened_destination("probe") as destination:
            return isinstance(destination, Merging) and destination.lands

    def copy(self, *, stop: Flag) -> RunOutcome:
        """Copies every table once, from a snapshot. No slot is kept, so changes cannot be streamed afterwards."""
        self._expect_nothing_followed()
        prepared = self.prepare(streaming=False)
        CopyPool(self._context, prepared, self._launch(), stop, snapshot_only=True).copy_everything()
        return self._outcome()

    def _expect_nothing_followed(self) -> None:
        """Raises if a stream follows any table: a copy without a slot would end that."""
        expect_not_streamed(self.store, self.spec.id)
        followed = sorted(table for table, state in states_of(self.store).items() if is_followed(state))
        if followed:
            message = f"Pipeline {self.spec.id} follows {', '.join(map(str, followed))}: a single copy would end that."
            remedy = "Go on with `pgetl run FILE`; or copy under another id; or `pgetl destroy FILE` first."
            raise PgetlError(ErrorKind.USAGE, message, remedy=remedy)

    @contextmanager
    def admitted_copy(self, table: TableName) -> Iterator[CopyJob | None]:
        """Yields the job for the group of this table, which must be in Init; None if no copy can be admitted now. The
        caller runs the job within the context."""
        expect_own(self._context)
        with admitted_copy(self._context, table) as job:
            yield job

    def roll_back_dead_copies(self) -> None:
        """Returns to Init the tables whose copy died without recording it."""
        self.store.load()
        preparation.roll_back_dead_copies(self._context)

    def _launch(self) -> Launch:
        """Returns a function that starts copies: by Spark for a destination that several processes can reach, in this
        process for one in its memory."""
        if self.spec.destination.kind.in_process:
            return lambda job: LocalCopy(job, self.store, self._observer)
        return lambda job: submit(COPY, job, self._observer, self._environment)

    def _launch_merge(self) -> LaunchMerge:
        return lambda job: submit(MERGE, job, self._observer, self._environment)

    def _outcome(self) -> RunOutcome:
        self.store.load()
        phases = {table: state.phase for table, state in states_of(self.store).items()}
        return RunOutcome({table: phase for table, phase in phases.items() if isinstance(phase, Errored)})

    # -- going back ---------------------------------------------------------------------------------------------------

    def rollback(self, table: TableName) -> TableState:
        """Returns the table to its last safe phase, under a new generation."""
        return self._go_back({table: self._rolled_back(self.state(table))})[table]

    def rollback_from(self, phases: frozenset[PhaseName], table: TableName) -> TableState:
        """Like `rollback`, but only for a table in one of `phases`. A table that has left them stays as it is: it has
        advanced, or it was already rolled back."""
        state = self.state(table)
        if phase_name(state.phase) not in phases:
            return state
        answer = self.store.apply({table: self._rolled_back(state, phases)})
        if isinstance(answer, Refused):
            return self.state(table)
        self._await_letting_go(table, answer[table].generation)
        return answer[table]

    def reset(self, table: TableName) -> TableState:
        """Returns the table to Init, so that it is copied again. Readers keep the old data until then."""
        return self.reset_all([table])[table]

    def reset_all(self, tables: Collection[TableName] | None = None) -> Mapping[TableName, TableState]:
        """Resets several tables, either all of them or none; by default every table of the pipeline."""
        self._expect_own()
        self.store.load()
        chosen = self.store.tables() if tables is None else tables
        return self._go_back({table: Reset(self.state(table).generation) for table in chosen})

    def forget_copy(self, table: TableName) -> None:
        """Deletes the schemas that the store has of the table; a new copy stores them anew."""
        self.store.clear_copy_state(table)

    def state(self, table: TableName) -> TableState:
        """Returns the table's current state from the store."""
        self.store.load()
        record = self.store.tables().get(table)
        if record is None:
            raise self._unknown(table)
        return record.state

    def _unknown(self, table: TableName) -> PgetlError:
        known = [written(each) for each in self.store.tables()]
        message = f"Pipeline {self.spec.id} has no table {written(table)}{suggestion(written(table), known)}"
        remedy = "`pgetl status` lists its tables." if known else "It has none yet: `pgetl run` takes them up."
        return PgetlError(ErrorKind.USAGE, message, remedy=remedy)

    def _rolled_back(self, state: TableState, only: frozenset[PhaseName] | None = None) -> RolledBack:
        return RolledBack(state.generation, state.attempt in self._usable_groups(), only)

    def _usable_groups(self) -> set[int]:
        with self._context.source.session("rollback") as session:
            slots = group_slots(session.list_slots())
        return {attempt for attempt, slot in slots.items() if slot.lost is None}

    def _go_back(self, events: Mapping[TableName, Event]) -> Mapping[TableName, TableState]:
        self._expect_own()
        answer = self.store.apply(events)
        if isinstance(answer, Refused):
            tables = ", ".join(map(written, events))
            raise PgetlError(ErrorKind.USAGE, f"{tables} could not be rolled back: {answer.why}.", remedy="Try again.")
        for table, state in answer.items():
            self._await_letting_go(table, state.generation)
        return answer

    def _expect_own(self) -> None:
        """Raises if the declaration names an owner and the pipeline belongs to another. A pipeline file names no owner:
        there the user decides."""
        if self.spec.owner is not None:
            expect_own(self._context)

    def _await_letting_go(self, table: TableName, generation: int) -> None:
        """Waits until the worker has acknowledged the new generation, or no worker holds the lease; then raises the
        epoch, so that a previous worker is fenced."""
        deadline = self._context.runtime.monotonic() + _ACKNOWLEDGE_SECONDS
        while self.store.lease() is not None:
            self.store.load()
            record = self.store.tables().get(table)
            if record is None or record.acknowledged >= generation:
                return
            if self._context.runtime.monotonic() > deadline:
                self._observer(
                    Noted("warning", f"The worker has not released {written(table)} yet; the fence refuses its writes.")
                )
                return
            self._context.runtime.sleep(0.1)
        self.store.raise_epoch()

    def pause(self) -> None:
        """Stops streaming and admits no copies until `resume`. The streams have ended when this returns; copies that
        have begun go on. The slots remain and retain WAL."""
        self._expect_own()
        self.store.set_paused(True)
        await_end_of_streams(self._context)

    def resume(self) -> bool:
        """Returns whether the pipeline was paused. A running worker continues by itself."""
        self._expect_own()
        self.store.load()
        was_paused = is_paused(self.store)
        self.store.set_paused(False)
        return was_paused

    def release(self) -> str | None:
        """Removes the owner of the pipeline, so that the next to prepare it becomes its owner. Returns the previous
        owner."""
        self.store.load()
        owner = self.store.pipeline().owner
        self.store.set_owner(None, instead_of=owner)
        return owner

    # -- removing -----------------------------------------------------------------------------------------------------

    def destroy(self, patience: float = 0.0) -> list[str]:
        """Removes the slots, the publications that pgetl created, all state, and the destination's metadata; the data
        in the destination remains. Returns what was removed; an empty list if nothing was left of the pipeline.

        Raises if the pipeline is still streamed or copied after `patience` seconds, or if the source has slots of a
        state that is not in this store. Without state, only the destination's metadata is removed.
        """
        key, in_source = self.spec.state_key, self.spec.state_uri is None
        uri = resolve_all(self.spec.references, self._environment)[key]
        if is_stored(uri, self.spec.id, in_source=in_source):
            self._expect_own()
            said = destroy(self._context, patience)
        else:
            source = resolve(self.spec.source.uri, self._environment)
            with connect(source, worker_name(self.spec.id, "destroy")) as connection:
                expect_no_state_elsewhere(connection, self.spec.id, self._observer)
            said = forget_in_destination(self._opened_destination, self.spec.id, self._observer)
        return said + withdraw(lambda: withdraw_unused(uri, in_source=in_source), self._observer)

    def _opened_destination(self, worker: str) -> AbstractContextManager[Destination]:
        """Opens the destination for a block, without using the store."""
        spec = self.spec.destination
        uri = None if spec.uri is None else resolve(spec.uri, self._environment)
        return opened_destination(spec, uri, self.spec.id, worker, resolved_options(spec, self._environment))
