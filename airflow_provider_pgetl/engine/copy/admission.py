"""The pool of copies of a `run`: tables in Init form sync groups, and each group is copied by one copy process.

`copy.table_workers` limits the number of groups from the moment when they may hold a slot until they are handed over,
not only while they copy, because slots are scarce. One thread manages the pool. However a copy ends, the states of its
tables are in the store, and the pool finds them there. A group whose copy failed as a whole is retried with growing
pauses; if the error cannot pass by itself (a wrong password, a wrong declaration), the pool ends with that error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyResult, Running
from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.copy.attempt import ATTEMPT_SECONDS, Heartbeat
from airflow_provider_pgetl.engine.copy.claims import Claims
from airflow_provider_pgetl.engine.model.errors import Backoff, ErrorData, ErrorKind, PgetlError, unforeseen
from airflow_provider_pgetl.engine.model.phases import COPYING, phase_name
from airflow_provider_pgetl.engine.model.reports import Noted
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.engine.prepare.lifecycle import is_paused
from airflow_provider_pgetl.engine.prepare.preparation import Prepared, copy_of, roll_back_dead_copies, size_of
from airflow_provider_pgetl.engine.runtime.threads import Flag
from airflow_provider_pgetl.engine.source import preflight
from airflow_provider_pgetl.engine.state import decisions
from airflow_provider_pgetl.engine.state.decisions import states_of
from airflow_provider_pgetl.engine.state.store import TableRecord

log = logging.getLogger(__name__)

_ROUND_SECONDS = 0.3
_GRACE_SECONDS = 3.0
_BACKOFF = Backoff(1.0, 60.0)
_PAUSED = "The pipeline is paused: no copy begins until `pgetl resume`."


# -- Which tables share a snapshot. ------------------------------------------------------------------------------------
#
# A sync group costs the source a replication slot and one decoding of its WAL until its tables are handed over. One
# group per table would exhaust the slots of a server with many small tables; one group for all tables would make every
# table wait for the largest. So a table of `group_bytes` or more is a group of its own, and smaller ones are packed up
# to that size.

Group = tuple[TableName, ...]


def form_groups(sizes: Mapping[TableName, int], group_bytes: int) -> list[Group]:
    """Returns groups that contain every table once, the largest tables first. The same sizes always give the same
    groups.

    No group is larger than `group_bytes` unless it is a single table, and no two groups would fit into one.
    """
    groups: list[list[TableName]] = []
    filled: list[int] = []
    for table in sorted(sizes, key=lambda table: (-sizes[table], table)):
        place = _first_fit(filled, sizes[table], group_bytes)
        if place is None:
            groups.append([table])
            filled.append(sizes[table])
        else:
            groups[place].append(table)
            filled[place] += sizes[table]
    return [tuple(group) for group in groups]


def _first_fit(filled: list[int], size: int, limit: int) -> int | None:
    return next((place for place, used in enumerate(filled) if used + size <= limit), None)


# -- The pool of a `run`. ----------------------------------------------------------------------------------------------

Launch = Callable[[CopyJob], Running[CopyResult]]


class CopyPool:
    """`start` runs the pool in a thread of its own until `stop` is set. `copy_everything` runs it until nothing is left
    to copy."""

    def __init__(
        self, context: PipelineContext, prepared: Prepared, launch: Launch, stop: Flag, *, snapshot_only: bool = False
    ) -> None:
        self._context = context
        self._prepared = prepared
        self._launch = launch
        self._stop = stop
        self._snapshot_only = snapshot_only
        self._running: dict[Group, Running[CopyResult]] = {}
        self._settled: Mapping[TableName, TableRecord] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._was_paused = False
        self._thread = context.runtime.thread(self._run, "pgetl copies")
        self.error: PgetlError | None = None

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def busy(self) -> bool:
        """Returns whether copies are running. Raises the error that ended the pool."""
        if self.error is not None:
            raise self.error
        return bool(self._running)

    def copy_everything(self) -> None:
        """Runs the pool in the calling thread until no table is in Init or DataSync any more."""
        try:
            while not self._stop.is_set():
                self._round()
                if not self._running and not self._waiting():
                    break
                self._stop.wait(_ROUND_SECONDS)
        finally:
            self._end()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._round()
            except PgetlError as error:
                if not error.transient:
                    self._fail(error)
                    break
                log.warning("Copies are put off: %s", error)
            except Exception as defect:  # otherwise the run would go on without copies, silently
                log.exception("Copies failed")
                self._fail(unforeseen("The pool of copies", defect))
                break
            self._stop.wait(_ROUND_SECONDS)
        self._end()

    def _fail(self, error: PgetlError) -> None:
        self.error = error
        self._stop.set()

    def _round(self) -> None:
        self._reap()
        self._context.store.load()
        if self._context.store.tables() is self._settled:
            return
        roll_back_dead_copies(self._context)
        live = self._context.store.live_attempts()
        records, states = self._context.store.tables(), states_of(self._context.store)
        capacity = self._context.spec.copy.table_workers - max(self._under_way(states, live), len(self._running))
        if self._context.runtime.monotonic() < self._not_before or self._is_paused():
            return
        for group in self._groups(states)[: max(0, capacity)]:
            self._running[group] = self._launch(self._job(group))
        if not any(phase_name(state.phase) in COPYING for state in states.values()):
            self._settled = records

    def _is_paused(self) -> bool:
        """Returns whether the pipeline is paused. A snapshot-only copy reports the pause itself, because no worker runs
        that would report it."""
        paused = is_paused(self._context.store)
        if paused and not self._was_paused and self._snapshot_only:
            self._context.observer(Noted("warning", _PAUSED))
        self._was_paused = paused
        return paused

    def _under_way(self, states: decisions.States, live: frozenset[int]) -> int:
        """Returns the number of groups that count against `copy.table_workers`. A snapshot-only copy hands nothing
        over, so only live attempts count."""
        return len(live) if self._snapshot_only else decisions.groups_under_way(states, live)

    def _groups(self, states: decisions.States) -> list[Group]:
        taken = {table for group in self._running for table in group}
        sizes = {
            table: self._prepared.sizes[table]
            for table in decisions.tables_to_copy(states)
            if table not in taken and table in self._prepared.sizes
        }
        return form_groups(sizes, self._context.spec.copy.group_bytes)

    def _waiting(self) -> bool:
        return bool(self._groups(states_of(self._context.store)))

    def _job(self, group: Group) -> CopyJob:
        tables = tuple(self._prepared.copies[table] for table in group)
        return CopyJob(self._context.ruled_spec, tables, self._snapshot_only)

    def _reap(self) -> None:
        for group, copy in list(self._running.items()):
            result = copy.wait(0)
            if result is not None:
                del self._running[group]
                self._note(group, result)

    def _note(self, group: Group, result: CopyResult) -> None:
        self._failures = 0 if result.failure is None else self._failures + 1
        if result.failure is not None:
            names = ", ".join(map(written, group))
            self._context.observer(Noted("error", f"The copy of {names} ended: {result.failure}"))
            self._pause(result.failure)

    def _pause(self, failure: ErrorData) -> None:
        if failure.kind.directive.needs_action and failure.kind is not ErrorKind.FENCED:
            raise failure.error
        self._not_before = self._context.runtime.monotonic() + _BACKOFF.after(self._failures)

    def _end(self) -> None:
        for copy in self._running.values():
            copy.stop(_GRACE_SECONDS)
        self._running.clear()


# -- Admission of one copy, for callers that copy one group at a time without knowing of each other. -------------------
#
# `pgetl run` has a pool that starts all copies. An orchestrator has one task per table, and several tasks may ask for
# admission at once. A task therefore begins an attempt first and checks the capacity afterwards: of the attempts that
# have begun, the earliest are admitted. The attempt lives as long as the context manager `admitted_copy` is entered.
# The tables of its group are in DataSync under this attempt before anything is started, so that no other task starts
# with the same tables while Spark is still starting.
#
# Leaving the context manager, in whatever way, ends the attempt. Tables that were not copied by then count as those of
# a copy that died, and return to Init.


@contextmanager
def admitted_copy(context: PipelineContext, table: TableName) -> Iterator[CopyJob | None]:
    """Yields the job for the group that this table belongs to, its tables claimed; None if there is no capacity, or if
    the table is no longer in Init."""
    context.store.load()
    roll_back_dead_copies(context)
    attempt = context.store.start_attempt(ATTEMPT_SECONDS, context.runtime.process())
    try:
        with Heartbeat(context.store, attempt, runtime=context.runtime):
            yield _job(context, table, attempt) if _has_capacity(context, attempt) else None
    finally:
        context.store.end_attempt(attempt)
        context.store.load()
        roll_back_dead_copies(context)


def _has_capacity(context: PipelineContext, attempt: int) -> bool:
    """Returns whether the attempt is admitted. A copy counts as begun for a pause that is set after its attempt
    began."""
    live = context.store.live_attempts()
    context.store.load()
    if is_paused(context.store):
        return False
    return decisions.groups_before(attempt, states_of(context.store), live) < context.spec.copy.table_workers


def _job(context: PipelineContext, table: TableName, attempt: int) -> CopyJob | None:
    with context.connect("groups") as connection:
        found = {one.table: one for one in preflight.survey(connection, context.spec).candidates}
    waiting = [one for one in decisions.tables_to_copy(states_of(context.store)) if one in found]
    sizes = {one: size_of(found[one]) for one in waiting}
    group = next((group for group in form_groups(sizes, context.spec.copy.group_bytes) if table in group), ())
    claims = Claims(context.store, attempt, context.observer, runtime=context.runtime)
    claims.start(group)
    if not claims.holds(table):
        return None
    tables = tuple(copy_of(context, found[one]) for one in group if claims.holds(one))
    return CopyJob(context.ruled_spec, tables, attempt=attempt)
