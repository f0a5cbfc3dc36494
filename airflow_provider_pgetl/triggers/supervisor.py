"""How `ApplyTrigger` keeps the streaming worker running.

It supervises a child process and does nothing else: a decoder in the triggerer's event loop would stall every other
trigger. What it guarantees:

* Connections are looked up each time a child is started, so that rotated passwords are picked up.
* A child that ends without reporting an ending is started again, with growing pauses; one that does so repeatedly fails
  the task with the end of its standard error. A child that another worker has fenced is started again, and waits until
  that worker ends: `supervisor_decisions`.
* A child that has ended because a server is out of reach is started again until the outage is over, or has lasted too
  long.
* A lease that another worker holds is waited for without a bound, and reported once a minute; the child does that.
* Every final end becomes a `TriggerEvent`, and the task resumes on a worker to handle it.
* Tables that are removed from the DAG's file while its run goes on are not streamed any more: the stream is
  interrupted, as only a worker can read the file.
* A table that has become Errored interrupts the stream where callbacks are to be called, or the run is to fail:
  callbacks are Python of the DAG's file, which only a worker has. `supervisor_decisions` defines when. Callbacks that
  are given by their paths are called here, and the stream goes on; after a crash of the triggerer they may be called a
  second time.
* Where another trigger follows, the end of the trigger is not the end of the stream: the child is left (`child.leave`).
* An exception in one of the other coroutines that run beside a child (`_sentries`) ends the child, and is raised.

What it deliberately does not do: hold a lock, drop a slot, or roll anything back when it is cancelled. Cancelling means
only that this triggerer is not to run it any more; another may be running it already, and the epoch, not the kill,
separates the two. Nor does it end the task because another worker is found to stream: if that worker belongs to the
same task, Airflow would take the end of this trigger for the end of the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_pgetl.completion_records import failed_tasks, is_to_resume, removed_tasks
from airflow_provider_pgetl.connections import aenvironment
from airflow_provider_pgetl.declarations import Replication
from airflow_provider_pgetl.engine.config.jobs import Ending, Order
from airflow_provider_pgetl.engine.config.secrets import redact, secrets_of
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.reports import Observer, Report, StreamProgressed
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.errored_tables import ErroredTable, acall_back, errored_tables
from airflow_provider_pgetl.reporting import Reporting, count_worker, gauge_errored
from airflow_provider_pgetl.triggers import child as child_module
from airflow_provider_pgetl.triggers.child import Child
from airflow_provider_pgetl.triggers.supervisor_decisions import (
    Alarm,
    Copier,
    Orphans,
    Restarts,
    Rung,
    copying_tasks,
    is_uncopied,
)
from airflow_provider_pgetl.triggers.waiting import watcher

if TYPE_CHECKING:
    from airflow_provider_pgetl.engine.monitoring.snapshots import PipelineSnapshot
    from airflow_provider_pgetl.engine.monitoring.watching import StateWatcher
    from airflow_provider_pgetl.triggers.pgetl import ApplyTrigger

_LOOK_SECONDS = 10.0
_EDIT_SECONDS = 30.0
# As long as Airflow waits before it considers a triggerer dead, and assigns its triggers to another.
_SILENCE_SECONDS = 30.0


async def supervise(trigger: ApplyTrigger) -> AsyncIterator[TriggerEvent]:
    yield TriggerEvent(await Supervision(trigger).stream())


class Supervision:
    """The supervision of one run of the trigger."""

    def __init__(self, trigger: ApplyTrigger) -> None:
        self._replication = Replication.from_json(trigger.replication)
        self._trigger = trigger
        self._copiers = tuple(Copier.from_json(one) for one in trigger.copiers)
        self._whose = (self._replication.connections.state, self._replication.spec.id)
        self._orphans: list[TableName] = []
        self._removed: frozenset[str] = frozenset()
        self._rung: Rung | None = None
        self._streamed = False

    async def stream(self) -> dict[str, Any]:
        """Runs child after child, until one has ended finally, or none can be started. Returns the trigger's event."""
        try:
            event = await self._stream()
        except PgetlError as error:
            event = _failed(error.message, error.remedy, error.kind.value)
        return {**event, "told": self._trigger.told} if self._trigger.told else event

    async def _stream(self) -> dict[str, Any]:
        restarts = Restarts(self._replication.tolerance.outage_seconds)
        while True:
            began = time.monotonic()
            order = await self._order()
            ending, last_words = await self._run_child(order)
            if ending is not None and await self._rotated_secrets(ending, order):
                continue
            verdict = restarts.after(ending, last_words, began=began, now=time.monotonic(), streamed=self._streamed)
            if isinstance(verdict, Ending):
                return self._event(verdict)
            if verdict.why:
                self._trigger.log.warning("%s", verdict.why)
            await asyncio.sleep(verdict.seconds)

    async def _order(self) -> Order:
        environment = await aenvironment(self._replication.connections)
        return Order(self._replication.spec, environment, self._trigger.until_caught_up, _SILENCE_SECONDS)

    async def _run_child(self, order: Order) -> tuple[Ending | None, str]:
        await asyncio.to_thread(count_worker, order.spec.id)
        self._streamed = False
        child = await Child.start(order, self._observer(order.spec.id))
        ending = asyncio.ensure_future(child.ending())
        sentries = [asyncio.create_task(sentry) for sentry in self._sentries()]
        try:
            await asyncio.wait({ending, *sentries}, return_when=asyncio.FIRST_COMPLETED)
            called = [sentry for sentry in sentries if sentry.done()]
            if not ending.done() and all(sentry.exception() is None for sentry in called):
                child_module.leave(self._whose, child, ending, self._is_to_resume)
                return Ending(stopped=True), ""
            child.let_go()
            ended = await ending
            child.kill()
            for sentry in called:
                sentry.result()
            return ended, redact(child.last_words, secrets_of(order.environment.values()))
        except asyncio.CancelledError:
            child_module.relieve(self._whose)
            await self._end_in_spite_of_cancelling(child)
            raise
        finally:
            for sentry in sentries:
                sentry.cancel()

    async def _is_to_resume(self) -> bool:
        """Returns whether the task, for which this trigger has fired, still waits for a worker, or runs on one."""
        task = self._trigger.task_instance
        return task is not None and await is_to_resume(self._trigger.run_name, task.task_id)

    def _observer(self, pipeline: str) -> Observer:
        reporting = Reporting(pipeline, self._trigger.log)

        def observe(report: Report) -> None:
            child_module.relieve(self._whose)
            self._streamed = self._streamed or isinstance(report, StreamProgressed)
            reporting.observe(report)

        return observe

    def _sentries(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yields coroutines, each of which ends when the trigger is to end."""
        if self._trigger.rotate_at is not None:
            yield self._await_rotation(self._trigger.rotate_at)
        if self._copiers:
            yield self._await_orphans()
            yield self._await_alarm()
            yield self._await_edit()

    async def _await_rotation(self, rotate_at: float) -> None:
        """Waits until the time of rotation, and then until no table of the run is on its way to Ready: only this stream
        brings such a table there, and meanwhile the run goes on, so that no other begins."""
        await asyncio.sleep(max(0.0, rotate_at - time.time()))
        tables = {copier.table for copier in self._copiers}

        def has_come(picture: PipelineSnapshot) -> bool:
            return tables.isdisjoint(picture.on_their_way)

        while tables:
            try:
                waiting = await watcher(self._replication.connections.state, self._replication.spec.id)
                await waiting.wait(has_come)
                return
            except PgetlError as error:
                self._trigger.log.warning("Whether tables are on their way cannot be seen: %s", error)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _await_orphans(self) -> None:
        """Waits for tables that no task of the run will copy. If they cannot be determined, it tries again: the stream
        itself may be in order."""
        orphans = Orphans(self._copiers)
        while not self._orphans:
            try:
                self._orphans = await self._found(orphans)
            except PgetlError as error:
                self._trigger.log.warning("Whether tables are left to copy cannot be seen: %s", error)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _found(self, orphans: Orphans) -> list[TableName]:
        waiting = await watcher(self._replication.connections.state, self._replication.spec.id)
        picture = await waiting.wait(_somebody_waits)
        known = await waiting.completions(self._trigger.run_name)
        found = [] if known is None else orphans.found(picture, known, time.time())
        if self._trigger.until_caught_up and not found:
            failed = await failed_tasks(self._trigger.run_name, [copier.task for copier in self._copiers])
            found = orphans.failed(picture, failed, time.time())
        return found

    async def _await_edit(self) -> None:
        """Waits until tables have been removed from the DAG's file. Tables that were added register themselves, by
        tasks of their own; a removed table has no task that could report it."""
        while not self._removed:
            await asyncio.sleep(_EDIT_SECONDS)
            try:
                waiting = await watcher(self._replication.connections.state, self._replication.spec.id)
                picture = await waiting.wait(lambda _: True)
                tasks = copying_tasks(self._copiers, picture.states)
                self._removed = await removed_tasks(self._trigger.run_name, tasks)
            except PgetlError as error:
                self._trigger.log.warning("Whether tables were taken out of the DAG cannot be seen: %s", error)

    async def _await_alarm(self) -> None:
        """Waits until an Errored table is a reason to interrupt the stream, or to end it."""
        while self._rung is None:
            try:
                waiting = await watcher(self._replication.connections.state, self._replication.spec.id)
                alarm = await self._alarm(waiting)
                if alarm is not None:
                    self._rung = await self._listen(waiting, alarm)
                    return
            except PgetlError as error:
                self._trigger.log.warning("Whether tables are Errored cannot be seen: %s", error)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _alarm(self, waiting: StateWatcher) -> Alarm | None:
        """Returns None while the completion records cannot be read."""
        known = await waiting.completions(self._trigger.run_name)
        if known is None:
            return None
        prepare, *_ = self._copiers[0].before or ("",)
        first = await waiting.wait(lambda _: True)
        since = known.get(prepare, first.now)
        for table in errored_tables(first.states, first.since):
            if table.since <= since:
                self._trigger.log.error("%s", table)
        told = frozenset((schema, name, generation) for schema, name, generation in self._trigger.told)
        tells = self._trigger.tells or bool(self._trigger.callbacks)
        return Alarm(since, told, tells, self._trigger.fail_after)

    async def _listen(self, waiting: StateWatcher, alarm: Alarm) -> Rung:
        known = -1
        while True:

            def has_changed(picture: PipelineSnapshot, known: int = known, alarm: Alarm = alarm) -> bool:
                return _errored(picture) != known or alarm.rings(picture) is not None

            picture = await waiting.wait(has_changed)
            known = _errored(picture)
            await asyncio.to_thread(gauge_errored, self._replication.spec.id, known)
            if self._trigger.callbacks and (rung := alarm.rings(picture)):
                alarm = await self._tell(rung.untold, alarm)
            if rung := alarm.rings(picture):
                return rung

    async def _tell(self, tables: Sequence[ErroredTable], alarm: Alarm) -> Alarm:
        """Calls callbacks in the triggerer, without interrupting the stream. Returns the alarm for the time after
        that."""
        await acall_back(self._trigger.callbacks, {"ti": self._trigger.task_instance}, tables)
        self._trigger.told += [list(table.mark) for table in tables]
        return replace(alarm, told={*alarm.told, *(table.mark for table in tables)})

    async def _end_in_spite_of_cancelling(self, child: Child) -> None:
        """Lets the child finish its write. The triggerer cancels again each second; that is a hint, not a deadline."""
        ending = asyncio.ensure_future(child.end())
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                child.let_go()

    async def _rotated_secrets(self, ending: Ending, order: Order) -> bool:
        """Returns whether a server refused a password that has been changed in Airflow since."""
        if ending.kind != ErrorKind.AUTHENTICATION.value:
            return False
        return (await self._order()).environment != order.environment

    def _event(self, ending: Ending) -> dict[str, Any]:
        if ending.kind is not None:
            return _failed(ending.message, ending.remedy, ending.kind)
        if self._rung and ending.stopped:
            return self._interrupted(self._rung)
        if self._removed:
            return {"status": "edited", "rotate_at": self._trigger.rotate_at}
        if self._orphans:
            return {"status": "copy_needed", "tables": [str(table) for table in self._orphans]}
        if self._trigger.until_caught_up and not ending.stopped:
            return {"status": "caught_up"}
        return {"status": "rotated"}

    def _interrupted(self, rung: Rung) -> dict[str, Any]:
        return {
            "status": "errored",
            "untold": [table.as_json() for table in rung.untold],
            "fatal": [table.as_json() for table in rung.fatal],
            "rotate_at": self._trigger.rotate_at,
        }


def _errored(picture: PipelineSnapshot) -> int:
    return len(errored_tables(picture.states, picture.since))


def _somebody_waits(picture: PipelineSnapshot) -> bool:
    return any(is_uncopied(picture, table) for table in picture.states)


def _failed(message: str, remedy: str, kind: str = ErrorKind.INTERNAL.value) -> dict[str, Any]:
    return {"status": "failed", "kind": kind, "message": message, "remedy": remedy}
