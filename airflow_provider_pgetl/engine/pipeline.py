"""The pipeline's verbs: what a command line, a DAG's tasks, or a program of one's own can ask for.

    prepare ─▶ copy (groups, bounded) ─▶ stream ─▶ merge          run = all of them, in one process tree

A `Pipeline` resolves the declaration's secrets and opens its store when a verb first needs them. It holds no other
state: everything that outlives a verb is in the store.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

from airflow_provider_pgetl.engine.config import PipelineSpec
from airflow_provider_pgetl.engine.destinations.opening import open_destination, resolved_options
from airflow_provider_pgetl.engine.destinations.protocol import Destination, Merging
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.findings import Finding
from airflow_provider_pgetl.engine.phases import (
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
from airflow_provider_pgetl.engine.reports import Noted, Observer, nobody
from airflow_provider_pgetl.engine.secrets import resolve, resolve_all
from airflow_provider_pgetl.engine.source.slots import list_slots
from airflow_provider_pgetl.engine.spelling import suggestion
from airflow_provider_pgetl.engine.state.opening import is_stored, open_store, withdraw_unused
from airflow_provider_pgetl.engine.state.protocol import Store
from airflow_provider_pgetl.engine.status import Outcome, Status
from airflow_provider_pgetl.engine.sync.applications import COPY, MERGE
from airflow_provider_pgetl.engine.sync.checking import look
from airflow_provider_pgetl.engine.sync.copies import CopyPool, Launch
from airflow_provider_pgetl.engine.sync.copying.job import CopyJob
from airflow_provider_pgetl.engine.sync.copying.local import LocalCopy
from airflow_provider_pgetl.engine.sync.desk import states_of
from airflow_provider_pgetl.engine.sync.destroying import (
    destroy,
    expect_not_streamed,
    forget_in_destination,
    withdraw,
)
from airflow_provider_pgetl.engine.sync.looking import read_status
from airflow_provider_pgetl.engine.sync.merging.driver import backlog, is_merged
from airflow_provider_pgetl.engine.sync.merging.job import MergeJob
from airflow_provider_pgetl.engine.sync.merging.outcome import MergeResult
from airflow_provider_pgetl.engine.sync.merging.running import LaunchMerge, awaited
from airflow_provider_pgetl.engine.sync.prepare import Prepared, prepare, roll_back_dead_copies
from airflow_provider_pgetl.engine.sync.reserving import reserved_copy
from airflow_provider_pgetl.engine.sync.site import Site
from airflow_provider_pgetl.engine.sync.slots_of_groups import group_slots
from airflow_provider_pgetl.engine.sync.submitting import submit
from airflow_provider_pgetl.engine.sync.worker import StreamingWorker
from airflow_provider_pgetl.engine.table_names import written
from airflow_provider_pgetl.engine.tables import TableName

_ACKNOWLEDGE_SECONDS = 20.0
_GAPS = (ErrorKind.SLOT_LOST, ErrorKind.LINEAGE)


class Pipeline:
    """One declared pipeline. `environment` is where references like ``env:NAME`` are looked up."""

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
    def _site(self) -> Site:
        uris = resolve_all(self.spec.references, self._environment)
        return Site(
            self.spec,
            self.store,
            self._observer,
            uris["source", "uri"],
            uris.get(("destination", "uri")),
            resolved_options(self.spec.destination, self._environment),
        )

    def close(self) -> None:
        if "store" in self.__dict__:
            self.store.close()

    # -- looking ------------------------------------------------------------------------------------------------------

    def check(self) -> list[Finding]:
        """Everything that would stand in the way, on all three servers."""
        return look(self._site)

    def status(self) -> Status:
        """Where everything is. Of source and destination only what they can say now; the store must answer."""
        return read_status(
            self.spec.id,
            self.store,
            lambda: self._site.connect("status"),
            lambda: self._site.open_destination("status"),
        )

    # -- moving data --------------------------------------------------------------------------------------------------

    def prepare(self, *, streaming: bool = True) -> Prepared:
        """Source, store and destination brought together, or refused with the remedy."""
        return prepare(self._site, streaming=streaming)

    def run(self, *, until_caught_up: bool, stop: threading.Event) -> Outcome:
        """Copy what is not copied, and follow, until stopped; or until everything that is there now has arrived.

        Slot loss in the middle is what it is at the start: refused, or, where declared, made good by copying again.
        """
        while True:
            try:
                return self._run_once(until_caught_up, stop)
            except PgetlError as error:
                if self.spec.source.on_slot_lost != "resync" or error.kind not in _GAPS:
                    raise
                self._observer(Noted("warning", f"Beginning anew: {error.message}"))

    def _run_once(self, until_caught_up: bool, stop: threading.Event) -> Outcome:
        prepared = self.prepare()
        ending = threading.Event()
        pool = CopyPool(self._site, prepared, self._launch(), ending)
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

    def stream(self, *, until_caught_up: bool, stop: threading.Event, pool: CopyPool | None = None) -> None:
        """The streaming worker alone. Whoever copies does so elsewhere, or in `pool`."""
        worker = StreamingWorker(self._site, stop)
        worker.run(until_caught_up=until_caught_up, copies_expected=lambda: pool is not None and pool.busy())

    def merge(self, *, stop: threading.Event, launch: LaunchMerge | None = None) -> MergeResult:
        """What has landed beside the tables is merged into them, by Spark; readers see it from then on."""
        if not self._lands:
            message = f"Nothing lands beside the tables of pipeline {self.spec.id}: its worker merges changes itself."
            raise PgetlError(ErrorKind.USAGE, message, remedy='Set merge = "spark" in [destination] to merge by Spark.')
        with self._opened_destination("merge") as destination:
            known = backlog(destination, self.spec.id)
            if stop.is_set() or not known:
                return MergeResult()
            result = awaited((launch or self._launch_merge())(MergeJob(self.spec)), stop)
            if result.failure is not None and is_merged(destination, self.spec.id, known):
                return replace(result, failure=None)  # it could not say that it had done its work
            return result

    @property
    def _lands(self) -> bool:
        with self._opened_destination("probe") as destination:
            return isinstance(destination, Merging) and destination.lands

    @contextmanager
    def _opened_destination(self, worker: str) -> Iterator[Destination]:
        destination = self._open_destination(worker)
        try:
            yield destination
        finally:
            destination.shutdown()

    def copy(self, *, stop: threading.Event) -> Outcome:
        """Every table once, from a snapshot; no slot is kept, so nothing can follow from here."""
        self._expect_nothing_followed()
        prepared = self.prepare(streaming=False)
        CopyPool(self._site, prepared, self._launch(), stop, snapshot_only=True).copy_everything()
        return self._outcome()

    def _expect_nothing_followed(self) -> None:
        """Tables that a stream has taken over stay its own: a copy without a slot would be the end of following."""
        expect_not_streamed(self.store, self.spec.id)
        followed = sorted(table for table, state in states_of(self.store).items() if is_followed(state))
        if followed:
            message = f"Pipeline {self.spec.id} follows {', '.join(map(str, followed))}: a single copy would end that."
            remedy = "Go on with `pgetl run FILE`; or copy under another id; or `pgetl destroy FILE` first."
            raise PgetlError(ErrorKind.USAGE, message, remedy=remedy)

    @contextmanager
    def reserved_copy(self, table: TableName) -> Iterator[CopyJob | None]:
        """Room to copy the group that this table in Init belongs to; None while there is no room. Whoever is given a
        job copies it while this is entered."""
        with reserved_copy(self._site, table) as job:
            yield job

    def bury_dead_copies(self) -> None:
        """Tables whose copy died without a word are in Init again."""
        self.store.load()
        roll_back_dead_copies(self._site)

    def _launch(self) -> Launch:
        """Spark for destinations that several processes can reach; this very process for one that lives in it."""
        if self.spec.destination.type == "memory":
            return lambda job: LocalCopy(job, self.store, self._observer)
        return lambda job: submit(COPY, job, self._observer, self._environment)

    def _launch_merge(self) -> LaunchMerge:
        return lambda job: submit(MERGE, job, self._observer, self._environment)

    def _outcome(self) -> Outcome:
        self.store.load()
        phases = {table: state.phase for table, state in states_of(self.store).items()}
        return Outcome({table: phase for table, phase in phases.items() if isinstance(phase, Errored)})

    # -- going back ---------------------------------------------------------------------------------------------------

    def rollback(self, table: TableName) -> TableState:
        """Back to the table's last safe phase, under a new generation."""
        return self._go_back(table, self._rolled_back(self.state(table)))

    def rollback_from(self, phases: frozenset[PhaseName], table: TableName) -> TableState:
        """The same, but of a table that is in one of `phases`. One that has left them stays where it is now: it has
        come further, or somebody else has rolled it back."""
        state = self.state(table)
        if phase_name(state.phase) not in phases:
            return state
        answer = self.store.apply({table: self._rolled_back(state, phases)})
        if isinstance(answer, Refused):
            return self.state(table)
        self._await_letting_go(table, answer[table].generation)
        return answer[table]

    def reset(self, table: TableName) -> TableState:
        """Back to Init: the table is copied again; readers keep the old data until then."""
        return self._go_back(table, Reset(self.state(table).generation))

    def state(self, table: TableName) -> TableState:
        """The table's state as the store has it now."""
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
        with self._site.connect("rollback") as connection:
            slots = group_slots(list_slots(connection, self.spec.id, self._site.instance))
        return {attempt for attempt, slot in slots.items() if slot.lost is None}

    def _go_back(self, table: TableName, event: Event) -> TableState:
        answer = self.store.apply({table: event})
        if isinstance(answer, Refused):
            raise PgetlError(
                ErrorKind.USAGE, f"{written(table)} could not be rolled back: {answer.why}.", remedy="Try again."
            )
        self._await_letting_go(table, answer[table].generation)
        return answer[table]

    def _await_letting_go(self, table: TableName, generation: int) -> None:
        """Until the worker has taken up the new generation, or none runs any more: then its epoch is void."""
        deadline = time.monotonic() + _ACKNOWLEDGE_SECONDS
        while self.store.lease() is not None:
            self.store.load()
            record = self.store.tables().get(table)
            if record is None or record.acknowledged >= generation:
                return
            if time.monotonic() > deadline:
                self._observer(
                    Noted("warning", f"The worker has not let go of {written(table)} yet; the fence holds it off.")
                )
                return
            time.sleep(0.1)
        self.store.raise_epoch()

    # -- removing -----------------------------------------------------------------------------------------------------

    def destroy(self) -> list[str]:
        """Slots, our publications, all state and what the destination remembers go; the destination's data stays.
        Empty: nothing was left of the pipeline. Without state nothing is ours but what the destination remembers."""
        key, in_source = self.spec.state_key, self.spec.state_uri is None
        uri = resolve_all(self.spec.references, self._environment)[key]
        if is_stored(uri, self.spec.id, in_source=in_source):
            said = destroy(self._site)
        else:
            said = forget_in_destination(self._open_destination, self.spec.id, self._observer)
        return said + withdraw(lambda: withdraw_unused(uri, in_source=in_source), self._observer)

    def _open_destination(self, worker: str) -> Destination:
        """Without a store."""
        spec = self.spec.destination
        uri = None if spec.uri is None else resolve(spec.uri, self._environment)
        return open_destination(spec, uri, self.spec.id, worker, resolved_options(spec, self._environment))
