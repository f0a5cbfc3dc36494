"""How `ApplyTrigger` keeps the streaming worker running.

It supervises a child process and does nothing else: a decoder in the triggerer's event loop would stall every other
trigger. What it promises

* Connections are looked up when a child is started, again for every child, so that rotated passwords are picked up.
* A child that dies without a word is started again, with growing pauses; one that dies again and again fails the task
  with its last words.
* Every end that is final becomes a `TriggerEvent`, and the task resumes on a worker to say what it means.
* Whatever else it does beside a child (`_sentries`) is heard of: it ends the child, and what it failed of is raised.

What it deliberately does not do: hold a lock, drop a slot, or roll anything back when it is cancelled. Cancelling says
only that this triggerer is not to run it any more; another may be running it already, and the epoch, not the kill,
keeps the two apart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_pgetl.connections import aenvironment
from airflow_provider_pgetl.declarations import Replication
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.streaming_order import Ending, Order
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.metrics import count_worker
from airflow_provider_pgetl.reporting import Reporting
from airflow_provider_pgetl.triggers.child import Child
from airflow_provider_pgetl.triggers.failed import failed_tasks
from airflow_provider_pgetl.triggers.orphans import Copier, Orphans, is_uncopied
from airflow_provider_pgetl.triggers.watchers import watcher

if TYPE_CHECKING:
    from airflow_provider_pgetl.engine.state.watching import Picture
    from airflow_provider_pgetl.triggers.apply import ApplyTrigger

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_CRASHES_MOST = 5
_LONG_ENOUGH = 300.0
_LOOK_SECONDS = 10.0


async def supervise(trigger: ApplyTrigger) -> AsyncIterator[TriggerEvent]:
    yield TriggerEvent(await Supervision(trigger).stream())


class Supervision:
    """Of one run of the trigger."""

    def __init__(self, trigger: ApplyTrigger) -> None:
        self._replication = Replication.from_json(trigger.replication)
        self._trigger = trigger
        self._copiers = tuple(Copier.from_json(one) for one in trigger.copiers)
        self._orphans: list[TableName] = []

    async def stream(self) -> dict[str, Any]:
        """Child after child, until one has ended for good, or none can be started."""
        try:
            return await self._stream()
        except PgetlError as error:
            return _failed(error.message, error.remedy, error.kind.value)

    async def _stream(self) -> dict[str, Any]:
        crashes = 0
        while True:
            began = time.monotonic()
            order = await self._order()
            ending, last_words = await self._run_child(order)
            if ending is None:
                crashes = 1 if time.monotonic() - began > _LONG_ENOUGH else crashes + 1
                if crashes >= _CRASHES_MOST:
                    return _failed(f"The streaming worker died {crashes} times in a row; {last_words}", "")
                self._trigger.log.warning("The streaming worker died and is started again; %s", last_words)
                await asyncio.sleep(min(_FIRST_PAUSE * 2**crashes, _LONGEST_PAUSE))
            elif not await self._rotated_secrets(ending, order):
                return self._event(ending)

    async def _order(self) -> Order:
        environment = await aenvironment(self._replication.connections)
        return Order(self._replication.spec, environment, self._trigger.until_caught_up)

    async def _run_child(self, order: Order) -> tuple[Ending | None, str]:
        await asyncio.to_thread(count_worker, order.spec.id)
        child = await Child.start(order, Reporting(order.spec.id, self._trigger.log).observe)
        sentries = [asyncio.create_task(_let_go_after(sentry, child)) for sentry in self._sentries()]
        try:
            ending = await child.ending()
            for sentry in sentries:
                if sentry.done():
                    sentry.result()
            return ending, child.last_words
        except asyncio.CancelledError:
            await self._end_in_spite_of_cancelling(child)
            raise
        finally:
            for sentry in sentries:
                sentry.cancel()
            child.kill()

    def _sentries(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Each ends when the child is to end."""
        if self._trigger.rotate_at is not None:
            yield asyncio.sleep(max(0.0, self._trigger.rotate_at - time.time()))
        if self._copiers:
            yield self._await_orphans()

    async def _await_orphans(self) -> None:
        """What cannot be looked up now is looked up again: the stream itself may be well."""
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

    async def _end_in_spite_of_cancelling(self, child: Child) -> None:
        """Let the child finish its write. The triggerer cancels again each second; that is a hint, not a deadline."""
        ending = asyncio.ensure_future(child.end())
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                child.let_go()

    async def _rotated_secrets(self, ending: Ending, order: Order) -> bool:
        """Whether it was turned away with a password that has been changed in Airflow since."""
        if ending.kind != ErrorKind.AUTHENTICATION.value:
            return False
        return (await self._order()).environment != order.environment

    def _event(self, ending: Ending) -> dict[str, Any]:
        if ending.kind is not None:
            return _failed(ending.message, ending.remedy, ending.kind)
        if self._orphans:
            return {"status": "copy_needed", "tables": [str(table) for table in self._orphans]}
        if self._trigger.until_caught_up and not ending.stopped:
            return {"status": "caught_up"}
        return {"status": "rotated"}


async def _let_go_after(sentry: Coroutine[Any, Any, None], child: Child) -> None:
    """Also when it fails: nobody would hear of that before the child has ended."""
    try:
        await sentry
    finally:
        child.let_go()


def _somebody_waits(picture: Picture) -> bool:
    return any(is_uncopied(picture, table) for table in picture.states)


def _failed(message: str, remedy: str, kind: str = ErrorKind.INTERNAL.value) -> dict[str, Any]:
    return {"status": "failed", "kind": kind, "message": message, "remedy": remedy}
