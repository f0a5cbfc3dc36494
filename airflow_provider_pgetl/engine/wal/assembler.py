"""Turns raw payloads into batches of whole transactions. Every streamed row of the source takes this path.

Rows are not decoded. A row's payload is put unchanged into the bucket of its relation. Kind and relation are five bytes
at a fixed place, and one dictionary maps those five bytes to the bucket. A payload that is not in the dictionary (the
first row of its kind and relation in a transaction, and every message that is not a row) takes the slow path. A
keepalive is too short to have those bytes, so it takes the slow path too.

Invariants
* A position is (commit LSN, ordinal). The ordinal starts at 1 and counts the row changes and truncates of a
  transaction, including those of tables that are not owned, and nothing else: it must be the same after a reconnect,
  when RELATION messages are sent again.
* `owns` is called once per transaction and relation, and again when the relation is described anew within the
  transaction.
* RELATION messages are kept whether the table is owned or not: pgoutput sends them once per connection.
* Rows of a partition are sent under the OID of the published root, but before the first of them pgoutput describes
  both, the root and then the partition. The partition's description is kept with the step that holds that row.
* Within a batch, rows of one relation are in order. Rows before and after a truncate never share a step, nor do rows
  under different definitions of a relation or with different keys.
* A batch is taken whole and only between transactions; the next one starts empty.
* The rows gathered but not sealed are at most about one and a half times `chunk_bytes`, plus one `feed_many`.

An assembler belongs to one connection. When the connection breaks, assembler and unfinished batch are dropped; the
server sends the transactions again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Generic

import numpy as np

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import CommitLsn, RowCounts, format_lsn
from airflow_provider_pgetl.engine.runtime.processes import trim
from airflow_provider_pgetl.engine.wal.pgoutput import (
    HEADER,
    Begin,
    Commit,
    Keepalive,
    LogicalMessage,
    Message,
    Relation,
    TruncateMessage,
    decode,
)
from airflow_provider_pgetl.engine.wal.spool import K, Sealed, Spool, TruncateStep

CHUNK_BYTES = 8 << 20

Event = Begin | Relation | TruncateMessage | LogicalMessage | Commit | Keepalive
"""The messages that `feed_many` yields, in the order of the stream. The rows before each are gathered already."""

_ROUTE = slice(HEADER, HEADER + 5)
_KIND = slice(HEADER, HEADER + 1)
_ROW_KINDS = frozenset((b"I", b"U", b"D"))
_RELATION = Struct("!I")
_SLICE = 1024

_Lane = tuple[Callable[[bytes], None], Callable[[int], None]]
_SKIPPED = ()


@dataclass(frozen=True, slots=True)
class Batch(Generic[K]):
    """Whole transactions, in commit order. `last` is the commit that ends the batch; None when it holds no transaction.
    `counts`: per relation OID its key and the number of changes of each kind."""

    steps: Spool[K]
    transactions: int
    last: Commit | None
    counts: Mapping[int, tuple[K, RowCounts]]


class _Bucket(Generic[K]):
    """The rows of one relation that are gathered but not yet sealed."""

    __slots__ = ("commits", "key", "lane", "leaves", "ordinals", "payloads", "relation")

    def __init__(self, key: K, relation: Relation) -> None:
        self.key = key
        self.relation = relation
        self.leaves: dict[int, Relation] = {}
        self.payloads: list[bytes] = []
        self.ordinals = array("q")
        self.commits = array("q")
        self.lane: _Lane = (self.payloads.append, self.ordinals.append)

    def begin(self, transaction: Begin) -> None:
        self.commits.extend((len(self.payloads), transaction.commit_lsn, transaction.commit_time))

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.payloads))

    def seal(self) -> Sealed[K]:
        return Sealed(
            self.key,
            self.relation,
            b"".join(self.payloads),
            np.fromiter(map(len, self.payloads), np.int64, len(self.payloads)),
            np.frombuffer(self.commits, np.int64).reshape(-1, 3),
            np.frombuffer(self.ordinals, np.int64),
            tuple(self.leaves.values()),
        )


class Assembler(Generic[K]):
    """Groups the payloads of one connection. See the module's docstring.

    `owns(relation OID, commit LSN)` returns the key under which the rows are gathered, or None to skip them.
    """

    def __init__(
        self,
        owns: Callable[[int, CommitLsn], K | None],
        new_spool: Callable[[], Spool[K]],
        *,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._owns = owns
        self._new_spool = new_spool
        self._chunk_bytes = chunk_bytes
        self._relations: dict[int, Relation] = {}
        self._described: list[Relation] = []
        self._transaction: Begin | None = None
        self._ordinal = 0
        self._feeding = False
        # Of this transaction: the answers of `owns`, the buckets that it has been noted in, and the lanes by route
        # bytes.
        self._keys: dict[int, K | None] = {}
        self._joined: dict[int, _Bucket[K]] = {}
        self._lanes: dict[bytes, _Lane | tuple[()]] = {}
        # Of this batch.
        self._buckets: dict[int, _Bucket[K]] = {}
        self._steps = new_spool()
        self._counts: dict[int, tuple[K, RowCounts]] = {}
        self._transactions = 0
        self._last: Commit | None = None
        self._unmeasured = 0

    @property
    def in_transaction(self) -> bool:
        return self._transaction is not None

    @property
    def rows(self) -> int:
        """The number of owned rows in the batch so far, including those of a transaction that is still open."""
        return self._steps.rows + sum(len(bucket.payloads) for bucket in self._buckets.values())

    @property
    def nbytes(self) -> int:
        """The size of the sealed steps of the batch so far, in memory and on disk."""
        return self._steps.nbytes

    def relation(self, oid: int) -> Relation:
        """Returns the relation as this connection last described it."""
        if oid not in self._relations:
            raise PgetlError(ErrorKind.INTERNAL, f"The source sent changes of relation {oid} before describing it.")
        return self._relations[oid]

    # -- in -----------------------------------------------------------------------------------------------------------

    def feed_many(self, payloads: Sequence[bytes]) -> Iterator[Event]:
        """Gathers the payloads as the returned iterator is consumed; it yields the messages that are not rows.

        The caller may stop at an event, take the batch, and continue later: no payload after the event has been
        processed by then. The iterator must be exhausted before more is fed.
        """
        if self._feeding:
            raise PgetlError(ErrorKind.INTERNAL, "More was fed before what came earlier had been taken in.")
        self._feeding = True
        return self._feed_slices(payloads)

    def _feed_slices(self, payloads: Sequence[bytes]) -> Iterator[Event]:
        for start in range(0, len(payloads), _SLICE):
            few = payloads[start : start + _SLICE]
            yield from self._feed(few)
            self._note_growth(sum(map(len, few)))
        # Not in a `finally`: after an error, or with payloads not consumed, this assembler must not be fed again.
        self._feeding = False

    def _feed(self, payloads: Sequence[bytes]) -> Iterator[Event]:
        lane_of = self._lanes.get
        ordinal = self._ordinal
        for payload in payloads:
            lane = lane_of(payload[_ROUTE])
            if lane is None:
                if payload[_KIND] in _ROW_KINDS:
                    lane = self._open_lane(payload)
                else:
                    self._ordinal = ordinal
                    event = self._take_in(decode(payload))
                    ordinal = self._ordinal
                    if event is not None:
                        yield event
                    continue
            ordinal += 1
            if lane:
                lane[0](payload)
                lane[1](ordinal)
        self._ordinal = ordinal

    def _open_lane(self, payload: bytes) -> _Lane | tuple[()]:
        """Returns the lane for rows of this kind and relation, valid until the transaction ends or the bucket is
        sealed."""
        (oid,) = _RELATION.unpack_from(payload, HEADER + 1)
        transaction = self._current("a row")
        key = self._key(oid, transaction)
        leaf = self._leaf_of(oid)
        if key is None:
            lane: _Lane | tuple[()] = _SKIPPED
        else:
            bucket = self._joined_bucket(oid, key, transaction)
            lane = bucket.lane
            if leaf is not None:
                bucket.leaves[leaf.oid] = leaf
        self._lanes[payload[_ROUTE]] = lane
        return lane

    def _leaf_of(self, root: int) -> Relation | None:
        """Returns the partition that the current row belongs to, if it was described just before the row."""
        described, self._described = self._described, []
        is_leaf = len(described) > 1 and described[-2].oid == root and described[-1].oid != root
        return described[-1] if is_leaf else None

    def _key(self, oid: int, transaction: Begin) -> K | None:
        if oid not in self._keys:
            self.relation(oid)
            self._keys[oid] = self._owns(oid, transaction.commit_lsn)
        return self._keys[oid]

    def _joined_bucket(self, oid: int, key: K, transaction: Begin) -> _Bucket[K]:
        """Returns the relation's bucket, after the transaction has been noted in it as that of the next rows."""
        if oid not in self._joined:
            bucket = self._bucket(oid, key)
            bucket.begin(transaction)
            self._joined[oid] = bucket
        return self._joined[oid]

    def _bucket(self, oid: int, key: K) -> _Bucket[K]:
        bucket = self._buckets.get(oid)
        if bucket is not None and bucket.key is not key and bucket.key != key:
            self._seal_one(oid)
            bucket = None
        if bucket is None:
            bucket = self._buckets[oid] = _Bucket(key, self._relations[oid])
        return bucket

    def _current(self, what: str) -> Begin:
        if self._transaction is None:
            raise PgetlError(ErrorKind.INTERNAL, f"The source sent {what} outside a transaction.")
        return self._transaction

    # -- messages that are no rows ------------------------------------------------------------------------------------

    def _take_in(self, message: Message) -> Event | None:
        match message:
            case Keepalive() | LogicalMessage():
                return message
            case Begin():
                return self._begin(message)
            case Commit():
                return self._commit(message)
            case Relation():
                return self._describe(message)
            case TruncateMessage():
                return self._truncate(message)
            case _:
                return None

    def _begin(self, begin: Begin) -> Begin:
        if self._transaction is not None:
            inside = format_lsn(self._transaction.commit_lsn)
            raise PgetlError(ErrorKind.INTERNAL, f"The source began a transaction inside the one of {inside}.")
        self._transaction = begin
        self._ordinal = 0
        self._keys.clear()
        self._described.clear()
        return begin

    def _commit(self, commit: Commit) -> Commit:
        begun = self._current("a commit").commit_lsn
        if begun != commit.commit_lsn:
            pair = f"{format_lsn(commit.commit_lsn)} in the transaction of {format_lsn(begun)}"
            raise PgetlError(ErrorKind.INTERNAL, f"The source sent the commit of {pair}.")
        self._transaction = None
        self._transactions += 1
        self._last = commit
        # A row outside a transaction must not find a lane.
        self._leave_buckets()
        return commit

    def _describe(self, relation: Relation) -> Relation:
        if self._relations.get(relation.oid) != relation:
            self._seal_one(relation.oid)
        # Also if it is the same: the table may have been altered in a way that does not show in it.
        self._relations[relation.oid] = relation
        self._keys.pop(relation.oid, None)
        # The next row must take the slow path: it may be the first one of a partition.
        self._lanes.clear()
        self._described.append(relation)
        return relation

    def _truncate(self, truncate: TruncateMessage) -> TruncateMessage:
        transaction = self._current("a truncate")
        self._ordinal += 1
        self._described.clear()
        keys = {oid: self._key(oid, transaction) for oid in truncate.relations}
        owned = {oid: key for oid, key in keys.items() if key is not None}
        if owned:
            self._seal_all()
        for oid, key in owned.items():
            self._steps.append(self._truncate_step(oid, key, transaction))
            self._count(oid, key, RowCounts(truncates=1))
        return truncate

    def _truncate_step(self, oid: int, key: K, transaction: Begin) -> TruncateStep[K]:
        relation = self._relations[oid]
        return TruncateStep(key, relation, transaction.commit_lsn, transaction.commit_time, self._ordinal)

    # -- out ----------------------------------------------------------------------------------------------------------

    def take(self) -> Batch[K]:
        """Returns everything gathered since the last call, to be applied whole. Raises inside a transaction."""
        if self._transaction is not None:
            begun = format_lsn(self._transaction.commit_lsn)
            raise PgetlError(ErrorKind.INTERNAL, f"A batch was taken inside the transaction of {begun}.")
        self._seal_all()
        batch = Batch(self._steps, self._transactions, self._last, self._counts)
        self._steps, self._counts, self._transactions, self._last = self._new_spool(), {}, 0, None
        return batch

    def _note_growth(self, size: int) -> None:
        """Seals the buckets once they are large enough. The bytes fed are a cheap upper bound of the bytes gathered;
        the buckets are measured only when that bound reaches `chunk_bytes`."""
        self._unmeasured += size
        if self._unmeasured < self._chunk_bytes:
            return
        self._unmeasured = 0
        if 2 * sum(bucket.nbytes for bucket in self._buckets.values()) >= self._chunk_bytes:
            self._seal_all()
            trim()

    def _seal_all(self) -> None:
        for oid in list(self._buckets):
            self._seal_one(oid)
        self._leave_buckets()
        self._unmeasured = 0

    def _seal_one(self, oid: int) -> None:
        bucket = self._buckets.pop(oid, None)
        self._joined.pop(oid, None)
        if bucket is not None:
            step = bucket.seal()
            self._count(oid, step.key, step.counts())
            self._steps.append(step)

    def _count(self, oid: int, key: K, rows: RowCounts) -> None:
        before = self._counts.get(oid)
        self._counts[oid] = key, rows if before is None else before[1] + rows

    def _leave_buckets(self) -> None:
        """Makes the next row of each relation take the slow path, which notes the transaction in its bucket anew."""
        self._joined.clear()
        self._lanes.clear()
