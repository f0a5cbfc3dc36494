"""The trigger that keeps the streaming worker running.

It supervises a child process and does nothing else: a decoder in the triggerer's event loop would stall every other
trigger. What it promises

* Its kwargs hold ids and declarations, no secret. Connections are looked up when a child is started, again for every
  child, so that rotated passwords are picked up.
* A child that dies without a word is started again, with growing pauses; one that dies again and again fails the task
  with its last words.
* Every end that is final becomes a `TriggerEvent`, and the task resumes on a worker to say what it means.

What it deliberately does not do: hold a lock, drop a slot, or roll anything back when it is cancelled. Cancelling says
only that this triggerer is not to run it any more; another may be running it already, and the epoch, not the kill,
keeps
the two apart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_pgetl.connections import aenvironment
from airflow_provider_pgetl.declarations import Replication
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.phases import Init
from airflow_provider_pgetl.engine.streaming_order import Ending, Order
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.reporting import Reporting
from airflow_provider_pgetl.triggers.child import Child
from airflow_provider_pgetl.triggers.orphans import Copier, Orphans
from airflow_provider_pgetl.triggers.watchers import watcher

if TYPE_CHECKING:
    from airflow_provider_pgetl.engine.state.watching import Picture

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_CRASHES_MOST = 5
_LONG_ENOUGH = 300.0
_LOOK_SECONDS = 10.0


class ApplyTrigger(BaseTrigger):
    """Streams until caught up, or until `rotate_at` (seconds since the Unix epoch), or for ever.

    :param run: the run's name in the pipeline's book.
    :param copiers: the tasks of the run that copy (`orphans.Copier`). A table that is to be copied, and that none of
        them will copy any more, ends the stream too.
    """

    def __init__(
        self,
        replication: dict[str, Any],
        until_caught_up: bool = False,
        rotate_at: float | None = None,
        run: str = "",
        copiers: list[Any] | None = None,
    ) -> None:
        super().__init__()
        self.replication = replication
        self.until_caught_up = until_caught_up
        self.rotate_at = rotate_at
        self.run_name = run
        self.copiers = copiers or []
        self._orphans: list[TableName] = []

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs = {
            "replication": self.replication,
            "until_caught_up": self.until_caught_up,
            "rotate_at": self.rotate_at,
            "run": self.run_name,
            "copiers": self.copiers,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield TriggerEvent(await self._stream())

    async def _stream(self) -> dict[str, Any]:
        """Child after child, until one has ended for good."""
        crashes = 0
        while True:
            began = time.monotonic()
            try:
                order = await self._order()
            except PgetlError as error:
                return _failed(error.message, error.remedy, error.kind.value)
            ending, last_words = await self._run_child(order)
            if ending is None:
                crashes = 1 if time.monotonic() - began > _LONG_ENOUGH else crashes + 1
                if crashes >= _CRASHES_MOST:
                    return _failed(f"The streaming worker died {crashes} times in a row; {last_words}", "")
                self.log.warning("The streaming worker died and is started again; %s", last_words)
                await asyncio.sleep(min(_FIRST_PAUSE * 2**crashes, _LONGEST_PAUSE))
            elif not await self._rotated_secrets(ending, order):
                return self._event(ending)

    async def _order(self) -> Order:
        replication = Replication.from_json(self.replication)
        environment = await aenvironment(replication.connections)
        return Order(replication.spec, environment, self.until_caught_up)

    async def _run_child(self, order: Order) -> tuple[Ending | None, str]:
        child = await Child.start(order, Reporting(order.spec.id, self.log).observe)
        sentries = [asyncio.create_task(self._rotate(child)), asyncio.create_task(self._await_orphans(child))]
        try:
            return await child.ending(), child.last_words
        except asyncio.CancelledError:
            await self._end_in_spite_of_cancelling(child)
            raise
        finally:
            for sentry in sentries:
                sentry.cancel()
            child.kill()

    async def _rotate(self, child: Child) -> None:
        if self.rotate_at is not None:
            await asyncio.sleep(max(0.0, self.rotate_at - time.time()))
            child.let_go()

    async def _await_orphans(self, child: Child) -> None:
        if not self.copiers:
            return
        replication = Replication.from_json(self.replication)
        waiting = await watcher(replication.connections.state, replication.spec.id)
        orphans = Orphans(tuple(Copier.from_json(one) for one in self.copiers))
        while not self._orphans:
            picture = await waiting.wait(_somebody_waits)
            known = await waiting.completions(self.run_name)
            if known is not None:
                self._orphans = orphans.found(picture, known, time.monotonic())
            await asyncio.sleep(_LOOK_SECONDS)
        child.let_go()

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
        if self.until_caught_up and not ending.stopped:
            return {"status": "caught_up"}
        return {"status": "rotated"}


def _somebody_waits(picture: Picture) -> bool:
    return any(isinstance(state.phase, Init) for state in picture.states.values())


def _failed(message: str, remedy: str, kind: str = ErrorKind.INTERNAL.value) -> dict[str, Any]:
    return {"status": "failed", "kind": kind, "message": message, "remedy": remedy}
