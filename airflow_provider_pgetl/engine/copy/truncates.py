"""Finds, in the group's slot, which tables of the group were truncated since the snapshot.

A table whose file is not the snapshot's may have been truncated or rewritten. A TRUNCATE is in the stream, and from its
end on the table is complete after the catch-up, whichever earlier rows the copy lacks. After VACUUM FULL, CLUSTER or a
rewriting ALTER TABLE, nothing in the stream makes up for the rows that could not be read. So the slot is read, up to
where the WAL ended after the other file was found. Nothing is confirmed, so the catch-up reads all of it again.

A TRUNCATE of a single partition is not sent where the root is published, so it is not found here either; nor is one
that the publication leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airflow_provider_pgetl.engine.context import SourceServer
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.runtime.threads import THREADS, Runtime
from airflow_provider_pgetl.engine.wal.feedback import Feedback
from airflow_provider_pgetl.engine.wal.protocol import KIND, Begin, Commit, Keepalive, TruncateMessage, decode

_ASK_SECONDS = 0.2
_WANTED_KINDS = frozenset((b"B", b"C", b"T"))
_KEEPALIVE = b"k"


class Truncates:
    """Reads the slot as far as necessary, and remembers each table's first TRUNCATE. For one thread. A call that failed
    may be repeated; reading continues where it ended."""

    def __init__(
        self,
        source: SourceServer,
        worker: str,
        slot: str,
        publications: tuple[str, ...],
        start: Boundary,
        runtime: Runtime = THREADS,
    ) -> None:
        self._runtime = runtime
        self._source = source
        self._worker = worker
        self._slot = slot
        self._publications = publications
        self._read_to = start
        self._ends: dict[int, Boundary] = {}
        self._transaction: set[int] | None = None

    def first_of(self, relation: int, stopped: Callable[[], bool]) -> Boundary | None:
        """Returns the end of the first transaction since the snapshot that truncated the relation; None if no
        transaction that has committed by now did, or when `stopped`."""
        if relation not in self._ends:
            with self._source.session(self._worker) as session:
                until = session.inserted_position()
            self._read(relation, until, stopped)
        return self._ends.get(relation)

    def _read(self, relation: int, until: Boundary, stopped: Callable[[], bool]) -> None:
        start, self._transaction = self._read_to, None
        with self._source.stream(self._worker, self._slot, self._publications, binary=True, start=start) as stream:
            feedback = Feedback(self._runtime.monotonic(), stream.sender_timeout)
            while self._read_to < until and relation not in self._ends and not stopped():
                payloads = stream.receive(min(_ASK_SECONDS, feedback.due_in(self._runtime.monotonic(), START)))
                self._take(payloads, feedback)
                now = self._runtime.monotonic()
                if feedback.flooded_for(now) is not None:
                    raise PgetlError(ErrorKind.CONNECTION, "The source is shutting down; the copy lets go of its slot.")
                if not payloads or feedback.due(now, START):
                    stream.send_feedback(START, reply_requested=not payloads)
                    feedback.sent(now, START)

    def _take(self, payloads: Iterable[bytes], feedback: Feedback) -> None:
        for payload in payloads:
            if payload[:1] != _KEEPALIVE and payload[KIND] not in _WANTED_KINDS:
                continue
            match decode(payload):
                case Keepalive() as keepalive:
                    feedback.heard(self._runtime.monotonic(), keepalive)
                    if self._transaction is None:
                        self._read_to = max(self._read_to, keepalive.position)
                case Begin():
                    self._transaction = set()
                case TruncateMessage(relations) if self._transaction is not None:
                    self._transaction.update(relations)
                case Commit(end=end):
                    self._note(self._transaction or (), end)
                case _:
                    pass

    def _note(self, truncated: Iterable[int], end: Boundary) -> None:
        for relation in truncated:
            self._ends.setdefault(relation, end)
        self._transaction = None
        self._read_to = max(self._read_to, end)
