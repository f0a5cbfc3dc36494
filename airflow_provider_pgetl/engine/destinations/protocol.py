"""The destination protocol, and the optional protocols (abilities) that a destination may implement as well.

`Destination` alone is enough for a working, at-least-once replica. Each ability below it is a protocol of its own, from
which the destination's class inherits: what it need not implement has a default.

| method | called in | by | again after a failure? |
|---|---|---|---|
| `drop_table_for_copy`, `begin_copy`, `finish_copy`, `abort_copy` | the copy's driver | one copy attempt | yes |
| `write_table_rows`, `write_range(_rows)` | Spark executors, several at once | one range | yes, by a new task |
| `claim`, `positions`, `adopt`, `write_events` | the streaming worker | one stream's writer thread | yes |
| `change_schema` | the streaming worker | one stream's writer thread | yes |
| `merge` | a driver of its own | one table | yes, also overlapping |
| `snapshots` | the comparison of `verify` | several tables | yes |
| `shutdown` | everywhere | once per process | no |

Destinations are made from `options` (plain data) by `open_destination`, anew in every process. They are never pickled,
and their secrets never leave the process. Methods of one instance are called by one thread at a time: each thread opens
an instance of its own.

Errors: a method raises `PgetlError` with a fitting kind, and with `table` set if the error concerns one table only (the
worker then quarantines that table and continues with the others). It raises `Fenced` if another writer has taken over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from airflow_provider_pgetl.engine.changes.batch import EventBatch, TablePosition, Target
from airflow_provider_pgetl.engine.config.spec import DestinationSpec
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Finding, PgetlError
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
        """Removes the table and all private replay state for it. A copy follows."""

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        """Adds rows of the initial copy. Called once without rows, so that empty tables are created."""

    def write_events(self, batch: EventBatch) -> None:
        """Applies changes. They are durable when this returns."""

    def shutdown(self) -> None:
        """Closes connections and files."""


@runtime_checkable
class AtomicCopy(Protocol):
    """Publishes copies in one step; readers see the old table until then.

    `attempt` is the number of the copy attempt; the numbers of a pipeline's attempts always rise. The destination
    records, for each table, the latest attempt that has begun, and refuses (`Fenced`) all later requests of an earlier
    attempt or of an attempt of an earlier generation.
    """

    def begin_copy(self, target: Target, attempt: int) -> None:
        """Creates an empty staging area for this attempt and removes those of earlier attempts. Idempotent."""

    def finish_copy(self, target: Target, attempt: int, position: Boundary, ranges: int | None = None) -> None:
        """Publishes the attempt: the staged rows become the table, and its position is `position`. Idempotent for the
        same attempt.

        `ranges` is the number of ranges that the destination has confirmed as stored. If the ledger has fewer, the
        destination was restored meanwhile, and the method refuses (`fencing.expect_ranges`).
        """

    def abort_copy(self, target: Target, attempt: int) -> None:
        """Removes what this attempt staged; the table is not changed. Never fails for a superseded attempt."""

    def announce_copies(self, targets: Collection[Target], attempt: int) -> None:
        """Records that `attempt` begins for these tables. `begin_copy` follows for each table and refuses those that
        cannot be copied; this method skips them. Idempotent. By default `begin_copy` alone records that."""
        del targets, attempt

    def foreign_rows(self, pipeline: str, tables: Collection[TableName]) -> Mapping[TableName, str]:
        """Returns the tables that hold foreign rows, each with a description of them as the end of a sentence
        (`fencing.rows_of`). Empty and missing tables are left out. Changes nothing.

        `begin_copy` and `finish_copy` refuse such a table (`fencing.refusal`, changing nothing) unless
        `target.replaces`. What a pipeline has published is its own, also after `forget`, until another pipeline
        replaces it. Rows that a copy could not restore, such as the history of a table, count as foreign rows. By
        default all rows count as the pipeline's own.
        """
        del pipeline, tables
        return {}


@runtime_checkable
class RangeCopy(Protocol):
    """Accepts the source's COPY stream unchanged: rows are not parsed."""

    def copy_format(self, schema: TableSchema) -> CopyFormat:
        """Returns the COPY format in which this table is transferred."""

    def write_range(self, target: Target, attempt: int, number: int, blocks: Iterable[bytes]) -> int:
        """Stores one range's COPY stream in the attempt's staging, together with the ledger entry (attempt, number).

        Returns the number of rows stored. If the ledger has the entry already, `blocks` is not read and nothing is
        stored.
        """


@runtime_checkable
class RangeRows(Protocol):
    """Accepts a range as columns, for destinations that write files of their own. Accompanies `AtomicCopy`."""

    def write_range_rows(
        self, target: Target, attempt: int, number: int, position: Boundary, batches: Iterable[pa.RecordBatch]
    ) -> int:
        """Stores one range's rows in the attempt's staging, together with the ledger entry (attempt, number).

        Every column of a batch is Arrow `binary`: the text of the type's output function, as in changes, and null for
        NULL. `position` is the position at which the attempt will be published. Returns the number of rows stored. If
        the ledger has the entry already, `batches` is not read and nothing is stored.
        """


@dataclass(frozen=True, slots=True)
class Stamp:
    """Identifies the state store that drives a pipeline, and how many changes the store had had at that time."""

    instance: str
    changes: int

    def after(self, known: Stamp | None) -> Stamp:
        """Returns the stamp to record if `known` is recorded: `known` if it is of another store, else the later one."""
        if known is None:
            return self
        return known if known.instance != self.instance or known.changes >= self.changes else self


@dataclass(frozen=True, slots=True)
class Misses:
    """Counts changes that matched no row: others wrote to the destination, or its rows are behind its position."""

    updates: int = 0
    deletes: int = 0

    def __add__(self, other: Misses) -> Misses:
        return Misses(self.updates + other.updates, self.deletes + other.deletes)


@runtime_checkable
class Positions(Protocol):
    """Exactly-once delivery: position, generation and epoch are checked and committed together with the data.
    Accompanies `AtomicCopy`: a table gets its first position when a copy of it is published. `fencing` has the
    decisions.

    `write_events` raises `Fenced` and changes nothing if the batch's epoch is not the one last claimed, or if a move
    does not start from the recorded (generation, position).
    """

    def claim(self, pipeline: str, epoch: int) -> None:
        """Permanently fences off every writer of an earlier epoch. Raises `Fenced` if a later epoch has claimed."""

    def positions(self, pipeline: str) -> Mapping[TableName, TablePosition]:
        """Returns the recorded positions of all tables of the pipeline."""

    def latest_attempt(self, pipeline: str) -> int:
        """Returns the highest copy attempt of the pipeline that has begun here; 0 if none has."""

    def adopt(self, target: Target) -> None:
        """Records that the table, at its position, now belongs to the later `target.generation`. Idempotent."""

    def forget(self, pipeline: str) -> bool:
        """Deletes the pipeline's epoch and its tables' generations, attempts and positions, and removes what its
        copies staged. Tables and rows stay. Writers that are still running for the pipeline are fenced off. Idempotent.
        Returns whether there was anything to forget."""
        del pipeline
        return False

    def stamp(self, pipeline: str, stamp: Stamp) -> Stamp:
        """Records which state store drives the pipeline (`Stamp.after`), and returns the stamp now recorded; `forget`
        deletes it. Idempotent. This detects another store that has a pipeline of the same id with another source, and a
        store that was restored to an earlier state and lacks what was done since. By default nothing is recorded."""
        del pipeline
        return stamp

    def lost(self, pipeline: str) -> Mapping[TableName, PgetlError]:
        """Returns the tables that have a position and that `write_events` would refuse because another pipeline or a
        person has replaced or altered them since, each with the reason. Changes nothing. By default there are none."""
        del pipeline
        return {}

    def misses(self) -> Mapping[TableName, Misses]:
        """Returns, per table, the changes of committed batches that matched no row since this object was created.
        Tables without any are left out. By default none are counted."""
        return {}


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A table that was altered at the source. `versions` are those of its schema since it was copied, the oldest first;
    the last one is `target.schema`, which the destination's table is to have. `dropped` are columns that the table may
    still have and is not to have any more; every other column that was dropped at the source is kept."""

    target: Target
    versions: tuple[TableSchema, ...]
    dropped: tuple[str, ...] = ()


@runtime_checkable
class SchemaChanges(Protocol):
    """Can alter its tables as they are altered at the source, without a new copy.

    A column that was added (`Column.missing`) has that value in all rows that the table has. It may be null whatever
    the source says: it comes without the constraints that the source's column may have.
    """

    def why_not(self, change: SchemaChange) -> str | None:
        """Returns why the table cannot be altered like this, as a part of a sentence; None if it can. Changes nothing.
        `change.target.generation` has no meaning here. A name that belonged to another column in an earlier version is
        free only where the table has no column of that name (`changes.versions.passed_on`)."""

    def change_schema(self, change: SchemaChange, epoch: int) -> None:
        """Alters the table; changes nothing if it is altered already. Raises `Fenced` like `write_events`. Called
        before the first batch under this version, possibly again after a failure, and once by each later worker."""


@runtime_checkable
class Inspecting(Protocol):
    """Checks before any work whether the destination, and each table, can hold what the source sends. By default
    nothing is found."""

    def inspect(self) -> list[Finding]:
        """Returns the findings; none if all is well. An error prevents every run, a warning is only reported. Raises
        the same error as any other method if the destination cannot be reached."""
        return []

    def inspect_table(self, schema: TableSchema) -> list[Finding]:
        """Returns the findings, under the destination's name of the table; none if the copy is free to create the
        table as needed. An error has the kind with which a copy would fail, and which would make the table Errored.
        Changes nothing."""
        del schema
        return []

    def indistinct(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        """Returns the tables that would be taken for another table, one of these or any other, each with the reason as
        a sentence without its full stop."""
        del tables
        return {}

    def bears(self, mark: Mark) -> bool:
        """Whether the source's mark is found in this database, which is then the source itself (the same-database
        check). Changes nothing."""
        del mark
        return False


@runtime_checkable
class Preferences(Protocol):
    """How the destination prefers to receive changes."""

    @property
    def write_interval(self) -> float:
        """Seconds between batches, unless the pipeline sets another interval: large where commits are costly. A batch
        is written earlier if another part of pgetl waits for it, or if it has become large."""
        return 0.0

    def accepts_binary(self, schemas: Collection[TableSchema]) -> bool:
        """Whether the source may send the values of these tables, and those of `universal` types, in binary format,
        because it means the same in the destination. Otherwise values arrive as text, which is the default. Called with
        all known tables before a stream connects; if another joins it later, again before any of its changes arrives,
        unless its types are `universal`."""
        del schemas
        return False


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of one merge of a table: the number of landed batches merged, and the position reached."""

    batches: int = 0
    position: Boundary | None = None


class Spread(Protocol):
    """Calls a function for each item, in this process or in others, several at once."""

    def __call__(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> Sequence[Answer | PgetlError]:
        """Returns the results in the order of the items; for a call that failed, its error. A call may be made twice.
        The function may hold secrets, items must not."""


@runtime_checkable
class Merging(Protocol):
    """Can let changes land beside their tables, to be merged into them later by another process.

    `positions` then returns the positions up to which changes have landed: these are durable and may be acknowledged.
    `merged` returns the positions that readers of the tables see.
    """

    @property
    def lands(self) -> bool:
        """Whether the destination's options let changes land. If not, `write_events` writes them into the tables."""

    def merged(self, pipeline: str) -> Mapping[TableName, Boundary]:
        """Returns the position up to which readers see the changes, for each table of the pipeline."""

    def merge(self, pipeline: str, table: TableName, spread: Spread, stopped: Callable[[], bool]) -> Merged:
        """Merges what has landed for the table until nothing is left or `stopped` returns true, and removes what is
        merged. Needs no claim. Several merges may overlap with each other and with writers."""


Part = Callable[[], Iterable[pa.Table]]
"""Some of a table's rows, as Arrow tables that are read one after the other. A part can be read again."""


class TableSnapshot(Protocol):
    """A table as its readers see it at one moment, regardless of later writes."""

    @property
    def position(self) -> Boundary:
        """The rows contain every change of the table below this position, and none above."""

    def held(self, texts: pa.Table) -> pa.Table:
        """Converts rows of the source, or some of their columns, to the form in which this destination holds them and
        in which `parts` returns them. Each column of `texts` is Arrow `binary`: the text of the type's output function,
        null for NULL. A column that the destination does not take from the source is left out."""

    def parts(self, keys: pa.Table | None = None) -> Sequence[Part]:
        """Returns the rows, each row in exactly one part. With `keys`, the texts of key columns, rows may be left out,
        but none that has one of these keys. A part raises `TABLE_REWRITTEN` if its rows can no longer be read as they
        were. The caller reads a part that it has begun to its end, or else reads no other part."""


@runtime_checkable
class Summing(Protocol):
    """A `TableSnapshot` of a PostgreSQL server that can sum up rows itself, so that equal rows need not be sent."""

    def sums(self, names: Sequence[str], keys: pa.Table | None = None) -> Sequence[Part]:
        """Returns parts of one row each, with the columns `copy_format.SUMS`, over these columns of all rows, in the
        source's types. With `keys`, the texts of key columns of built-in types: of the rows of these keys, and no
        others."""


@runtime_checkable
class Readable(Protocol):
    """Allows its rows to be compared with those of the source."""

    def snapshots(
        self, pipeline: str, schemas: Collection[TableSchema]
    ) -> AbstractContextManager[Mapping[TableName, TableSnapshot | PgetlError]]:
        """Returns for each of these tables of the pipeline a snapshot that is valid until the end of the block, or the
        reason why the table cannot be read. Holds no lock for longer than a part is read."""


# -- Opening the destination that a spec declares, of whichever type it is ---------------------------------------------

CONTRACT = ("name", "drop_table_for_copy", "write_table_rows", "write_events", "shutdown")


def open_destination(
    spec: DestinationSpec,
    uri: str | None,
    pipeline: str,
    worker: str,
    options: Mapping[str, Any] | None = None,
) -> Destination:
    """Returns a new destination for one thread of one process.

    `uri` is `spec.uri` resolved, with its secrets. `options` are the spec's options as `resolved_options` returned them
    earlier, possibly on another machine.
    """
    made = spec.kind.open(uri, resolved_options(spec) if options is None else options, pipeline, worker)
    lacking = [name for name in CONTRACT if not hasattr(made, name)]
    if lacking:
        raise PgetlError(ErrorKind.CONFIG, f"Destination {spec.type} lacks {', '.join(lacking)}.")
    assert isinstance(made, Destination), "it has all of the contract"
    return made


@contextmanager
def opened_destination(
    spec: DestinationSpec, uri: str | None, pipeline: str, worker: str, options: Mapping[str, Any] | None = None
) -> Iterator[Destination]:
    """Opens the destination for the block."""
    destination = open_destination(spec, uri, pipeline, worker, options)
    try:
        yield destination
    finally:
        destination.shutdown()


def resolved_options(spec: DestinationSpec, environment: Mapping[str, str] = os.environ) -> Mapping[str, Any]:
    """Returns the options with the values of their references."""
    return spec.kind.resolved(spec.options, environment)
