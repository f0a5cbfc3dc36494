"""The batches of a stream: the conversion of gathered steps to what a destination receives, and the writing.

The gathered steps stay where they are, in memory or on disk; a batch reads them as it is iterated, only for the tables
whose positions it moves. So the same gathered steps serve a retry that leaves a table out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_pgetl.engine.changes.batch import EventBatch, Move, Step, Target, Truncate, sealed_rows
from airflow_provider_pgetl.engine.changes.versions import converted
from airflow_provider_pgetl.engine.destinations.fencing import COPY_AGAIN
from airflow_provider_pgetl.engine.destinations.protocol import Destination, Positions, SchemaChange, SchemaChanges
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.runtime.processes import reach
from airflow_provider_pgetl.engine.runtime.threads import THREADS, Queue, Runtime
from airflow_provider_pgetl.engine.source.drift import ColumnForm, PublishedDescription, alike, differences, tells_key
from airflow_provider_pgetl.engine.state.decisions import changed_at_source, reset_command
from airflow_provider_pgetl.engine.state.store import Store
from airflow_provider_pgetl.engine.stream.messages import BatchWritten, Inbox, Planned, WriteFailed
from airflow_provider_pgetl.engine.transform.tables import Transforms, fingerprint_of, rules_changed
from airflow_provider_pgetl.engine.wal.pgoutput import Relation
from airflow_provider_pgetl.engine.wal.spool import AssembledStep as GatheredStep
from airflow_provider_pgetl.engine.wal.spool import Sealed, TruncateStep

# ----------------------------------------------------------------------------------------------------------------------
# Routes: from the OID of a relation in pgoutput to its table, the table's stored schema and its name in the
# destination.
#
# Rows are gathered with the version of the schema under which they were sent. A batch is written under the version that
# the table has when the batch is taken; rows of earlier versions are converted to it.


@dataclass(frozen=True, slots=True)
class Route:
    """The route of one table. `schema` is the version of its schema under which rows are read, under the destination's
    name of the table; `relation` is the OID at the source. `versions` are all stored versions, the oldest first, each
    with the boundary from which it is valid. `unfit`: why rows cannot be read under any version, if that is known.
    `is_ruled_otherwise`: the rules that transform it, or their keys, are others than when it was copied."""

    table: TableName
    schema: TableSchema
    relation: int
    versions: tuple[tuple[Boundary, TableSchema], ...] = ()
    unfit: str | None = None
    is_ruled_otherwise: bool = False

    @property
    def is_altered(self) -> bool:
        """Whether the table was altered since it was copied."""
        return len(self.versions) > 1

    def under(self, schema: TableSchema) -> Route:
        """Returns the route for rows that were sent under this version."""
        return self if schema is self.schema else replace(self, schema=schema)


class Routes:
    """The routes of all tables, by OID, by table and by destination name. `refresh` reads the given tables from the
    store's cache; other threads may look up meanwhile."""

    def __init__(self, pipeline: str, transforms: Transforms | None = None) -> None:
        self._pipeline = pipeline
        self.transforms = transforms
        self._lock = threading.Lock()
        self._by_relation: dict[int, Route] = {}
        self._by_table: dict[TableName, Route] = {}
        self._by_destination: dict[TableName, Route] = {}

    def refresh(self, store: Store, tables: Iterable[TableName]) -> None:
        for table in tables:
            with self._lock:  # so that the last to read is the last to enter what it has read
                known, fresh = self._by_table.get(table), self._route(store, table)
                if fresh == known:
                    continue
                if fresh is not None:
                    self._enter(fresh)
                if known is not None:
                    self._remove(known)

    def _enter(self, route: Route) -> None:
        self._by_table[route.table] = route
        self._by_relation[route.relation] = route
        self._by_destination[route.schema.table] = route

    def _remove(self, route: Route) -> None:
        """Removes the route, except where another route has replaced it."""
        if self._by_table.get(route.table) is route:
            del self._by_table[route.table]
        if self._by_relation.get(route.relation) is route:
            del self._by_relation[route.relation]
        if self._by_destination.get(route.schema.table) is route:
            del self._by_destination[route.schema.table]

    def _route(self, store: Store, table: TableName) -> Route | None:
        stored = store.schemas().get(table, {})
        metadata = store.destination_metadata(table)
        if table not in store.tables() or not stored or metadata is None:
            return None
        versions = tuple((start, replace(stored[start], table=metadata.destination)) for start in sorted(stored))
        _, latest = versions[-1]
        selection = store.tables()[table].selection
        transform = "" if selection is None else selection.transform
        is_ruled_otherwise = transform != fingerprint_of(self.transforms, table)
        return Route(table, latest, latest.relation, versions, is_ruled_otherwise=is_ruled_otherwise)

    def known_destination(self, table: TableName) -> TableName | None:
        route = self._by_table.get(table)
        return route.schema.table if route is not None else None

    def destination_name(self, table: TableName) -> TableName:
        return self._by_table[table].schema.table

    def of_relation(self, relation: int) -> Route | None:
        return self._by_relation.get(relation)

    def source_of(self, destination: str) -> TableName | None:
        """Returns the source's name of the table whose destination name, as text, is `destination`."""
        named = (route.table for there, route in list(self._by_destination.items()) if str(there) == destination)
        return next(named, None)

    def source_at(self, destination: TableName) -> TableName | None:
        """Returns the source's name of the table with this destination name."""
        route = self._by_destination.get(destination)
        return None if route is None else route.table

    def change(self, table: TableName, generation: int) -> SchemaChange | None:
        """Returns the change that the destination's table needs, if it is not made yet; None if the table was not
        altered since it was copied."""
        route = self._by_table[table]
        versions = tuple(version for _, version in route.versions)
        return SchemaChange(self.target(table, generation), versions) if route.is_altered else None

    def target(self, table: TableName, generation: int) -> Target:
        return Target(self._pipeline, self._by_table[table].schema, generation)


# -- Batches. ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class GatheredSteps:
    """The steps of the tables in `schemas`, in order, under these schemas; they can be iterated any number of times.
    `rows` is the number of rows in the steps that the last iteration has processed so far."""

    gathered: Iterable[GatheredStep[Route]]
    schemas: Mapping[TableName, TableSchema]
    transforms: Transforms | None = None
    rows: int = 0

    def __iter__(self) -> Iterator[Step]:
        self.rows = 0
        for step in self.gathered:
            if step.key.table in self.schemas:
                yield _step(step, self.schemas[step.key.table], self.transforms)
                self.rows += 0 if isinstance(step, TruncateStep) else len(step)


def event_batch(
    pipeline: str,
    epoch: int,
    routes: Routes,
    moves: Mapping[TableName, Planned],
    gathered: Iterable[GatheredStep[Route]],
) -> EventBatch:
    targets = {table: routes.target(table, move.generation) for table, move in moves.items()}
    planned = {targets[t].schema.table: Move(targets[t], move.expected, move.to) for t, move in moves.items()}
    schemas = {table: target.schema for table, target in targets.items()}
    steps = GatheredSteps(gathered, schemas, routes.transforms)
    return EventBatch(pipeline, epoch, planned, steps)


def schema_changes(routes: Routes, moves: Mapping[TableName, Planned]) -> list[SchemaChange]:
    """Returns the changes to be made in the destination before these moves, if they are not made yet."""
    changes = (routes.change(table, move.generation) for table, move in moves.items())
    return [change for change in changes if change is not None]


def _step(step: GatheredStep[Route], present: TableSchema, transforms: Transforms | None) -> Step:
    """Returns the step under the table's present schema, its values transformed. From here on nothing of a batch has
    values before their transformation."""
    schema = step.key.schema
    if step.key.is_ruled_otherwise:
        raise rules_changed(present.table)
    match step:
        case Sealed():
            expect_fit(step.relation, step.leaves, step.key)
            rows = sealed_rows(schema, step.data, step.lengths, step.commits, step.ordinals)
            transform = None if transforms is None else transforms.of(step.key.table, schema)
            rows = rows if transform is None else transform.rows(rows)
            return rows if schema is present else converted(rows, present)
        case TruncateStep():
            expect_fit(step.relation, (), step.key)
            return Truncate(present, step.commit_lsn, step.ordinal)


def expect_fit(relation: Relation, leaves: Sequence[Relation], route: Route) -> None:
    """Raises for a relation whose definition differs from the one under which its rows are read, and for a partition
    whose replica identity does not send the table's key."""
    schema, table = route.schema, route.table
    found = differences(schema, description(relation))
    if found:
        raise changed_at_source(table, schema.table, found, route.unfit)
    for leaf in leaves:
        if not tells_key(leaf.identity, [column.name for column in leaf.columns if column.key], schema):
            raise PgetlError(
                ErrorKind.UNKNOWN_ROW,
                f"The replica identity of {leaf.table}, a partition of {table}, is another than that of {table}: "
                "its updates and deletes do not say which row they are about.",
                remedy=f"{alike(leaf.table)}, then copy the table again: {reset_command(table)}.",
                table=str(schema.table),
            )


def description(relation: Relation) -> PublishedDescription:
    columns = {column.name: ColumnForm(column.type, column.modifier) for column in relation.columns}
    told = frozenset(column.name for column in relation.columns if column.key)
    return PublishedDescription(columns, relation.identity, told)


# -- The thread that writes one stream's batches: one destination session, one batch at a time. ------------------------
#
# The outcome of each batch is put into the stream's inbox; the core decides whether and when it is retried. A writer
# that is abandoned in the middle of a write does no harm: every later writer has claimed a later epoch.

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
