"""Which rows of which tables changed between two points, as a slot tells it.

The rows of two sides are those of two moments: the source's of the slot's consistent point, the destination's of each
table's position. What was changed in between is on one side only, and no difference. Nobody has to note that
beforehand: the slot holds it. It is read as far as it must be, and nothing is confirmed, so that a slot which is
somebody else's is left as it was.

A change counts for a table if ``after <= commit_lsn < before`` (protocol: everything before a boundary is exactly
``commit_lsn < boundary``). Of each the keys before and after it count; of a table without a key the whole rows. A
TRUNCATE, a change of columns, or more keys than `KEYS_AT_MOST`, and the whole table counts as changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from airflow_provider_pgetl.engine.changes.rows import sealed_rows
from airflow_provider_pgetl.engine.changes.tuples import Tuples
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.positions import START, Boundary, CommitLsn
from airflow_provider_pgetl.engine.sync.runtime import THREADS, Runtime
from airflow_provider_pgetl.engine.sync.source_server import SlotStream
from airflow_provider_pgetl.engine.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.wal.assembler import Assembler
from airflow_provider_pgetl.engine.wal.feedback import Feedback
from airflow_provider_pgetl.engine.wal.messages import Commit, Keepalive, Truncate
from airflow_provider_pgetl.engine.wal.spool import Budget, Spool
from airflow_provider_pgetl.engine.wal.steps import Sealed, Step

KEYS_AT_MOST = 200_000
_ASK_SECONDS = 0.2
_BUDGET_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Window:
    """Changes of a table, as described by `schema`, from `after` on and before `before`."""

    schema: TableSchema
    after: Boundary
    before: Boundary

    @property
    def key(self) -> tuple[str, ...]:
        return self.schema.key or self.schema.names

    def holds(self, commit_lsn: CommitLsn) -> bool:
        return self.before.covers(commit_lsn) and not self.after.covers(commit_lsn)


@dataclass(slots=True)
class Changed:
    """What was changed of one table. `keys`: the texts of key columns, some of them perhaps several times."""

    names: tuple[str, ...]
    whole: bool = False
    batches: list[pa.Table] = field(default_factory=list)
    count: int = 0

    @property
    def any(self) -> bool:
        return self.whole or self.count > 0

    @property
    def keys(self) -> pa.Table:
        empty = pa.table({name: pa.array([], pa.binary()) for name in self.names})
        return pa.concat_tables([empty, *self.batches]).combine_chunks()

    def add(self, keys: pa.Table) -> None:
        if self.whole or not keys.num_rows:
            return
        self.batches.append(keys)
        self.count += keys.num_rows
        if self.count > KEYS_AT_MOST:
            self._thin_out()

    def add_all(self) -> None:
        self.whole, self.batches, self.count = True, [], 0

    def _thin_out(self) -> None:
        """The same keys come again and again: only then more can be taken in."""
        once = self.keys.group_by(list(self.names)).aggregate([])
        if once.num_rows > KEYS_AT_MOST // 2:
            self.add_all()
        else:
            self.batches, self.count = [once.select(list(self.names))], once.num_rows


class ChangedKeys:
    """Reads a slot once, for all windows together."""

    def __init__(self, windows: Collection[Window], start: Boundary, runtime: Runtime = THREADS) -> None:
        self._windows = {window.schema.relation: window for window in windows}
        self._until = max((window.before for window in windows), default=START)
        self._read_to = start
        self._truncated = False
        self._runtime = runtime
        self._assembler: Assembler[TableName] = Assembler(self._owner, self._new_spool)
        self.found = {window.schema.table: Changed(window.key) for window in windows}

    def read(self, stream: SlotStream, stopped: Callable[[], bool]) -> None:
        """Up to the end of the last window."""
        feedback = Feedback(self._runtime.monotonic(), stream.sender_timeout)
        while self._read_to < self._until and not stopped():
            payloads = stream.receive(min(_ASK_SECONDS, feedback.due_in(self._runtime.monotonic(), START)))
            self._take(payloads, feedback)
            now = self._runtime.monotonic()
            if feedback.flooded_for(now) is not None:
                raise PgetlError(ErrorKind.CONNECTION, "The source is shutting down.")
            if not payloads or feedback.due(now, START):
                stream.send_feedback(START, reply_requested=not payloads)
                feedback.sent(now, START)

    def _take(self, payloads: Sequence[bytes], feedback: Feedback) -> None:
        for event in self._assembler.feed_many(payloads):
            match event:
                case Keepalive():
                    feedback.heard(self._runtime.monotonic(), event)
                    if not self._assembler.in_transaction:
                        self._read_to = max(self._read_to, event.position)
                case Truncate():
                    self._truncated = True
                case Commit():
                    self._read_to = max(self._read_to, event.end)
                    if self._assembler.rows or self._truncated:
                        self._note_batch()
                case _:
                    pass

    def _note_batch(self) -> None:
        """At each commit that has brought anything of a window, so that nothing gathers."""
        self._truncated = False
        batch = self._assembler.take()
        try:
            for step in batch.steps:
                self._note(step)
        finally:
            batch.steps.close()

    def _note(self, step: Step[TableName]) -> None:
        changed = self.found[step.key]
        window = self._windows[step.relation.oid]
        if not isinstance(step, Sealed) or tuple(one.name for one in step.relation.columns) != window.schema.names:
            changed.add_all()
            return
        try:
            rows = sealed_rows(window.schema, step.data, step.lengths, step.commits, step.ordinals)
            key = [window.schema.names.index(name) for name in window.key]
            for tuples, there in ((rows.old, rows.has_old), (rows.new, rows.has_new)):
                changed.add(_texts(tuples.columns(key).take(np.flatnonzero(there)), window.key))
        except PgetlError:  # a change that does not say which row it is about
            changed.add_all()

    def _owner(self, relation: int, commit_lsn: CommitLsn) -> TableName | None:
        window = self._windows.get(relation)
        return window.schema.table if window is not None and window.holds(commit_lsn) else None

    def _new_spool(self) -> Spool[TableName]:
        return Spool(Budget(_BUDGET_BYTES))


def _texts(tuples: Tuples, names: Sequence[str]) -> pa.Table:
    columns = [tuples.column_array(at).cast(pa.binary()) for at in range(tuples.width)]
    return pa.Table.from_arrays(columns, names=list(names))
