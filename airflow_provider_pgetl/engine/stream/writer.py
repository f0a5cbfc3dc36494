"""The thread that writes one stream's batches: one destination session, one batch at a time.

The outcome of each batch is put into the stream's inbox; the core decides whether and when it is retried. A writer that
is abandoned in the middle of a write does no harm: every later writer has claimed a later epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from airflow_provider_pgetl.engine.changes.batch import EventBatch
from airflow_provider_pgetl.engine.destinations.fencing import COPY_AGAIN
from airflow_provider_pgetl.engine.destinations.protocol import Destination, Positions, SchemaChange, SchemaChanges
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.runtime.failpoints import reach
from airflow_provider_pgetl.engine.runtime.threads import THREADS, Queue, Runtime
from airflow_provider_pgetl.engine.stream.messages import BatchWritten, Inbox, WriteFailed

log = logging.getLogger(__name__)


class Writer:
    """The writer of one stream, until `close`. Its thread calls `ended` last, when it holds nothing any more."""

    def __init__(
        self,
        name: str,
        open_destination: Callable[[], Destination],
        inbox: Inbox,
        ended: Callable[[], None],
        runtime: Runtime = THREADS,
    ) -> None:
        self._ended = ended
        self._open = open_destination
        self._inbox = inbox
        self._batches: Queue[tuple[EventBatch, str, Collection[SchemaChange]] | None] = runtime.queue()
        self._destination: Destination | None = None
        self._altered: dict[TableName, SchemaChange] = {}
        self._idle = runtime.flag()
        self._idle.set()
        self._thread = runtime.thread(self._run, name)
        self._thread.start()

    def submit(self, batch: EventBatch, place: str, changes: Collection[SchemaChange] = ()) -> None:
        """Queues the batch. `changes` are made in the destination before it, except those that this writer has made
        already. `place` is the name of the failpoint before the write; the one after it is `<place>_done`."""
        self._idle.clear()
        self._batches.put((batch, place, changes))

    @property
    def is_writing(self) -> bool:
        return not self._idle.is_set()

    def settle(self, patience: float) -> bool:
        """Waits up to `patience` seconds for the write in flight. Returns whether none is left."""
        return self._idle.wait(patience)

    def close(self, patience: float) -> None:
        """Ends the writer. A write that takes longer than `patience` seconds is not waited for: the fence of the
        destination excludes it once a later epoch has claimed."""
        self._batches.put(None)
        self._thread.join(patience)

    def _run(self) -> None:
        try:
            self._write_all()
        finally:
            self._ended()

    def _write_all(self) -> None:
        while (submitted := self._batches.get()) is not None:
            self._inbox.put(self._write(*submitted))
            self._idle.set()  # after the message, so that it is there when the writer is seen idle
        if self._destination is not None:
            self._destination.shutdown()

    def _write(self, batch: EventBatch, place: str, changes: Collection[SchemaChange]) -> BatchWritten | WriteFailed:
        try:
            if self._destination is None:
                self._destination = self._open()
            for change in changes:
                self._change(self._destination, change, batch.epoch)
            before = _missed(self._destination)
            reach(place)
            self._destination.write_events(batch)
            reach(f"{place}_done")
            return _written(self._destination, before)
        except PgetlError as error:
            return WriteFailed(error, self._positions(batch))
        except Exception as error:  # a custom destination may raise anything; no change may be lost by it
            log.exception("The destination failed in a way it does not name")
            return WriteFailed(PgetlError(ErrorKind.INTERNAL, f"The destination failed: {error!r}."), None)

    def _change(self, destination: Destination, change: SchemaChange, epoch: int) -> None:
        table = change.target.schema.table
        if self._altered.get(table) == change:
            return
        if not isinstance(destination, SchemaChanges):
            message = f"{table} was altered at the source, and the destination {destination.name} cannot alter tables."
            raise PgetlError(ErrorKind.SCHEMA, message, remedy=COPY_AGAIN, table=str(table))
        reach("schema.changing")
        destination.change_schema(change, epoch)
        reach("schema.changed")
        self._altered[table] = change

    def _positions(self, batch: EventBatch) -> Mapping[TableName, Boundary] | None:
        """Returns the present positions of the batch's tables, by destination name; None if they cannot be read."""
        destination = self._destination
        if destination is None or not isinstance(destination, Positions):
            return None
        try:
            found = destination.positions(batch.pipeline)
        except PgetlError:
            return None
        return {
            table: found[table].position
            for table, move in batch.moves.items()
            if table in found and found[table].generation == move.target.generation
        }


def _missed(destination: Destination) -> dict[TableName, int]:
    """Returns how many updates and deletes of each table found no row; empty if the destination does not count them."""
    if not isinstance(destination, Positions):
        return {}
    return {table: misses.updates + misses.deletes for table, misses in destination.misses().items()}


def _written(destination: Destination, before: Mapping[TableName, int]) -> BatchWritten:
    missed = {table: count - before.get(table, 0) for table, count in _missed(destination).items()}
    differing = [table for table, count in missed.items() if count > 0]
    return BatchWritten(sum(missed.values()), differing if isinstance(destination, Positions) else ())
