"""What a destination is, and what it may be able to do beyond that.

`Destination` alone is enough for a working, at-least-once replica. The abilities below it are protocols of their own; a
destination has one by having its methods (`isinstance` tells).

| method | called in | by | again after a failure? |
|---|---|---|---|
| `drop_table_for_copy`, `begin_copy`, `finish_copy`, `abort_copy` | the copy's driver | one copy attempt | yes |
| `write_table_rows`, `write_range(_rows)` | Spark executors, several at once | one range | yes, by a new task |
| `claim`, `positions`, `adopt`, `write_events` | the streaming worker | one stream's writer thread | yes |
| `merge` | a driver of its own | one table | yes, also overlapping |
| `snapshots` | whoever compares | several tables | yes |
| `shutdown` | everywhere | once per process | no |

Destinations are built from `options` (plain data) by `open_destination`, anew in every process; they are pickled
nowhere and hold no secrets beyond the process. Methods of one instance are called by one thread at a time: each thread
opens its own.

Errors: raise `PgetlError` with a fitting kind, `table` set where one table alone is to blame (the worker then
quarantines that table and goes on with the others); `Fenced` where somebody else has taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from airflow_provider_pgetl.engine.changes.batch import EventBatch, TablePosition, Target
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.findings import Finding
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.postgres.sessions import Mark

CopyFormat = Literal["binary", "text"]
Item = TypeVar("Item")
Answer = TypeVar("Answer")


@runtime_checkable
class Destination(Protocol):
    """The contract of the smallest destination. Every method must be safe to call again."""

    @property
    def name(self) -> str: ...

    def drop_table_for_copy(self, schema: TableSchema) -> None:
        """Remove the table and all private replay state of it; a copy follows."""

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        """Add rows of the initial copy. Called once with no rows, so that empty tables come to exist."""

    def write_events(self, batch: EventBatch) -> None:
        """Apply changes. When this returns, they are durable."""

    def shutdown(self) -> None:
        """Let go of connections and files."""


@runtime_checkable
class AtomicCopy(Protocol):
    """Copies become visible in one step; readers keep the old table until then.

    `attempt` is the copy attempt; attempts of a pipeline are ever-rising numbers. The destination remembers, per table,
    the latest attempt that began and refuses (`Fenced`) whatever an earlier attempt, or one of an earlier generation,
    says after that.
    """

    def begin_copy(self, target: Target, attempt: int) -> None:
        """Make an empty staging place for this attempt and remove those of earlier attempts. Idempotent."""

    def finish_copy(self, target: Target, attempt: int, position: Boundary, ranges: int | None = None) -> None:
        """Publish: staging becomes the table and its position is `position`. Idempotent for the same attempt.

        `ranges`: how many it was answered to have stored. With fewer in the ledger it was restored meanwhile, and
        refuses (`fencing.expect_ranges`).
        """

    def abort_copy(self, target: Target, attempt: int) -> None:
        """Remove what this attempt staged; the table stays as it was. Never fails for a superseded attempt."""


@runtime_checkable
class Announced(Protocol):
    """Notes at once what would otherwise be noted of each table of a group. Goes with `AtomicCopy`."""

    def announce_copies(self, targets: Collection[Target], attempt: int) -> None:
        """`begin_copy` follows for each of the tables, and refuses those that cannot be copied: here they are passed
        over. Idempotent."""


@runtime_checkable
class RangeCopy(Protocol):
    """Takes the source's COPY stream as it is: no row is ever looked at."""

    def copy_format(self, schema: TableSchema) -> CopyFormat:
        """The form of COPY in which this table travels."""

    def write_range(self, target: Target, attempt: int, number: int, blocks: Iterable[bytes]) -> int:
        """Store one range's COPY stream in the attempt's staging, together with the ledger entry (attempt, number).

        Answers the rows stored. If the ledger has the entry already, `blocks` is not read and nothing is stored.
        """


@runtime_checkable
class RangeRows(Protocol):
    """Takes a range as columns, for destinations that write files of their own. Goes with `AtomicCopy`."""

    def write_range_rows(
        self, target: Target, attempt: int, number: int, position: Boundary, batches: Iterable[pa.RecordBatch]
    ) -> int:
        """Store one range's rows in the attempt's staging, together with the ledger entry (attempt, number).

        Every column of a batch is Arrow `binary`: the text of the type's output function, as changes carry it, null
        for NULL. `position` is the one at which the attempt will be published. Answers the rows stored. If the ledger
        has the entry already, `batches` is not read and nothing is stored.
        """


@runtime_checkable
class Positions(Protocol):
    """Exactly-once: position, generation and epoch are committed with the data, and asserted with it.

    `write_events` refuses with `Fenced`, changing nothing, when the batch's epoch is not the one last claimed, or
    when a move does not start from the recorded (generation, position).
    """

    def claim(self, pipeline: str, epoch: int) -> None:
        """Shut out every writer of an earlier epoch, for good. Refused (`Fenced`) if a later epoch has claimed."""

    def positions(self, pipeline: str) -> Mapping[TableName, TablePosition]:
        """The recorded positions of all tables of the pipeline."""

    def latest_attempt(self, pipeline: str) -> int:
        """The highest copy attempt that has begun here for the pipeline; 0 if none has."""

    def adopt(self, target: Target) -> None:
        """Record that the table, at its position, now belongs to `target.generation`, which is later. Idempotent."""


@runtime_checkable
class WireFormat(Protocol):
    """Wants the source's values in binary where every table's types allow it; else, and without it, they arrive as
    text."""

    def accepts_binary(self, schema: TableSchema) -> bool:
        """Whether the binary form of every column means the same here. Asked of each table before a stream connects; of
        a table that joins the stream later, unless its types are `universal`, before any of its changes arrives."""


@runtime_checkable
class Paced(Protocol):
    """Dislikes small commits."""

    @property
    def write_interval(self) -> float:
        """Seconds between batches, unless the pipeline says otherwise, somebody waits, or a batch has become large."""


@runtime_checkable
class Inspectable(Protocol):
    """Can say before any work whether it could do it."""

    def inspect(self) -> list[Finding]:
        """What was found; empty when all is well. An error forbids every run, a warning is only told. Raises what any
        method would if the destination cannot be reached."""


@runtime_checkable
class TableInspecting(Protocol):
    """Can say before any work whether a table, in particular one that is there, could take what the source sends."""

    def inspect_table(self, schema: TableSchema) -> list[Finding]:
        """What was found, under the destination's name of the table; nothing where the copy can make the table as it
        likes. An error, of the kind that a copy would end with, would make the table Errored. Changes nothing."""


@runtime_checkable
class Forgetting(Protocol):
    """Can begin anew with a pipeline, whose store is lost or was destroyed, and so will count from one again."""

    def forget(self, pipeline: str) -> bool:
        """Let go of the pipeline's epoch and of its tables' generations, attempts and positions, and remove what its
        copies staged. Tables and rows stay. Whoever still writes for the pipeline is shut out. Idempotent; answers
        whether there was anything to forget."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """The state store from which a pipeline is driven, by its instance, and how many changes it had had by then."""

    instance: str
    changes: int

    def after(self, known: Stamp | None) -> Stamp:
        """What is noted when this comes to what is known: another's stamp stays, of the same the later."""
        if known is None:
            return self
        return known if known.instance != self.instance or known.changes >= self.changes else self


@runtime_checkable
class Stamped(Protocol):
    """Remembers from which state store a pipeline is driven: another may have one of the same id, of another source,
    and one that was set back does not know what was done since."""

    def stamp(self, pipeline: str, stamp: Stamp) -> Stamp:
        """Note it (`Stamp.after`), and answer what is noted now. `forget` takes it back. Idempotent."""


@runtime_checkable
class Discerning(Protocol):
    """Tells what a pipeline wrote from what others did.

    Of such a destination `begin_copy` and `finish_copy` refuse (`fencing.refusal`, nothing changed) a table that holds
    rows of others, unless `target.replaces`. What a pipeline has published is its own, also after `forget`, until
    another replaces it. What a copy could not bring again, such as the history of a table, is as good as others'.
    """

    def occupied(self, pipeline: str, tables: Collection[TableName]) -> Mapping[TableName, str]:
        """Those of the tables that hold what is not the pipeline's, each with what that is, as the end of a sentence
        (`fencing.rows_of`). Not a table that is empty, or not there. Changes nothing."""


@runtime_checkable
class Holding(Protocol):
    """Knows of each table which pipeline published the copy that is there: one at a time. `write_events` refuses a
    table that another pipeline, or a person, has replaced or altered since, with the error that `lost` tells."""

    def lost(self, pipeline: str) -> Mapping[TableName, PgetlError]:
        """The tables with a position that `write_events` would refuse, each with the reason. Changes nothing."""


@runtime_checkable
class Naming(Protocol):
    """Does not tell all names apart."""

    def indistinct(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        """Those that would be taken for another table, of these or of any, each with why, as a sentence without its
        full stop."""


@runtime_checkable
class Marked(Protocol):
    """Is a Postgres database itself, and so may be the very source."""

    def bears(self, mark: Mark) -> bool:
        """Whether this database shows the source's mark. Changes nothing."""


@dataclass(frozen=True, slots=True)
class Misses:
    """Changes that found no row to change: the destination was written to by others, or lags behind its position."""

    updates: int = 0
    deletes: int = 0

    def __add__(self, other: Misses) -> Misses:
        return Misses(self.updates + other.updates, self.deletes + other.deletes)


@runtime_checkable
class Counting(Protocol):
    """Knows what hit no row."""

    def misses(self) -> Mapping[TableName, Misses]:
        """Per table, since this object was made; of committed batches only. Tables without any are left out."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What one pass of a merge has done for a table: so many batches that had landed are in it, up to `position`."""

    batches: int = 0
    position: Boundary | None = None


class Spread(Protocol):
    """Has a function called for each item, in this process or in others, several at once."""

    def __call__(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> Sequence[Answer | PgetlError]:
        """The answers in the order of the items; of a call that failed, its error. A call may be made twice. The
        function may hold secrets, items do not."""


@runtime_checkable
class Merging(Protocol):
    """May let changes land beside their tables, to be merged in by whoever comes to do it.

    Then `positions` tells what has landed: that is durable and may be acknowledged. What readers of the tables see is
    `merged`.
    """

    @property
    def lands(self) -> bool:
        """Whether changes land, as the destination is declared; else they are in the tables once they are written."""

    def merged(self, pipeline: str) -> Mapping[TableName, Boundary]:
        """Up to where readers see the changes of each table of the pipeline."""

    def merge(self, pipeline: str, table: TableName, spread: Spread, stopped: Callable[[], bool]) -> Merged:
        """Merge what has landed for the table, until nothing is left or `stopped`, and take away what is merged. Needs
        no claim; several may overlap, with each other and with whoever writes."""


Part = Callable[[], Iterable[pa.Table]]
"""Some rows, in tables that are read one after the other. They can be read again."""


class TableSnapshot(Protocol):
    """A table as its readers see it at one moment, whatever is written to it meanwhile."""

    @property
    def position(self) -> Boundary:
        """Every change of the table below it is in the rows, and none above."""

    def held(self, texts: pa.Table) -> pa.Table:
        """Rows of the source, or some of their columns, as this destination would hold them: what `parts` gives, if
        they are in it. Each column is Arrow `binary`, the text of the type's output function, null for NULL. A column
        that the destination does not take from the source is left out."""

    def parts(self, keys: pa.Table | None = None) -> Sequence[Part]:
        """The rows, each in one of the parts. With `keys`, the texts of key columns, there may be fewer: at least those
        that have one of these keys. A part raises `TABLE_REWRITTEN` if its rows cannot be read as they were any more.
        One that is begun is read to its end, or else no other part is read."""


@runtime_checkable
class Readable(Protocol):
    """Lets its rows be compared with those of the source."""

    def snapshots(
        self, pipeline: str, schemas: Collection[TableSchema]
    ) -> AbstractContextManager[Mapping[TableName, TableSnapshot | PgetlError]]:
        """Of each of these tables of the pipeline what readers see from now on until the end of the block, or why it
        cannot be read. Locks nothing for longer than a part is read."""
