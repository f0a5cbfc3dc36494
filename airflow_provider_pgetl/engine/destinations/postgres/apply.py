"""Applies a batch as one transaction: completely, in order, and only for the worker that has claimed the epoch.

The transaction begins, takes the pipeline's lock in shared mode and reads the epoch and the tables' records; the pure
rules of `fencing` decide; data and positions are written; it commits. Small steps are sent in the same round trip as
the queries on which the decision is based, because what a refused transaction wrote is rolled back: a very small batch
takes two round trips.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from airflow_provider_pgetl.engine.changes.batch import DELETE, INSERT, EventBatch, Step, Truncate, WireRows
from airflow_provider_pgetl.engine.changes.fold import fold, fold_bag
from airflow_provider_pgetl.engine.changes.tuples import ABSENT, BINARY, TEXT, Tuples
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.postgres import existing_tables, metadata
from airflow_provider_pgetl.engine.destinations.postgres.bulk import Bulk, TemporaryTables
from airflow_provider_pgetl.engine.destinations.postgres.session import (
    DestinationServerError,
    QueryResult,
    Session,
    Statement,
)
from airflow_provider_pgetl.engine.destinations.postgres.types import Field, Form, PostgresShape, describe, kept_out
from airflow_provider_pgetl.engine.destinations.protocol import Misses
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema

# -- A few changes, one statement each, in the source's order, without staging and folding. ----------------------------
#
# Changes that the source made row by row are valid in that order, so a few changes cost one round trip and no more.

AT_MOST = 32
_FORMS: dict[int, Form] = {TEXT: "text", BINARY: "binary"}


def can_take(shape: PostgresShape, rows: WireRows) -> bool:
    """Whether the changes can be written one by one. No UPDATE may set an identity-always column; rows for which one
    might have to are rewritten in bulk."""
    return len(rows) <= AT_MOST and not (shape.always and bool((rows.has_old & rows.has_new).any()))


def statements(shape: PostgresShape, rows: WireRows) -> Iterator[tuple[Statement, Misses | None]]:
    """Yields the changes as statements, each with the misses to count if it affects no row; None if that must not
    happen."""
    for row in range(len(rows)):
        op = int(rows.ops[row])
        if op == INSERT:
            yield _insert(shape, rows.new, row), None
        elif op == DELETE:
            yield _delete(shape, rows.old, row), Misses(deletes=1)
        else:
            yield from _update(shape, rows, row)


class _Values:
    """Collects the parameters of a statement."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.formats: list[int] = []

    def add(self, field: Field, tuples: Tuples, row: int) -> str:
        """Adds the value; returns the parameter as SQL."""
        kind = int(tuples.kinds[field.index, row])
        self.values.append(tuples.value(field.index, row))
        self.formats.append(1 if kind == BINARY else 0)
        return field.parameter(len(self.values), _FORMS.get(kind, "null"))

    def statement(self, shape: PostgresShape, sql: str) -> Statement:
        return Statement(sql, self.values, self.formats, shape.table)


def _insert(shape: PostgresShape, new: Tuples, row: int) -> Statement:
    given = _Values()
    values = ", ".join([given.add(field, new, row) for field in shape.fields])
    sql = f"insert into {shape.sql} ({shape.columns_sql}) overriding system value values ({values})"
    return given.statement(shape, sql)


def _delete(shape: PostgresShape, old: Tuples, row: int) -> Statement:
    given = _Values()
    return given.statement(shape, f"delete from {shape.sql} t where {_known_by(shape, given, old, row)}")


def _update(shape: PostgresShape, rows: WireRows, row: int) -> Iterator[tuple[Statement, Misses]]:
    given = _Values()
    sets = ", ".join([f"{f.sql} = {given.add(f, rows.new, row)}" for f in _touched(shape, rows, row)])
    if sets:
        known = rows.old if rows.has_old[row] else rows.new
        sql = f"update {shape.sql} t set {sets} where {_known_by(shape, given, known, row)}"
        yield given.statement(shape, sql), Misses(updates=1)


def _touched(shape: PostgresShape, rows: WireRows, row: int) -> Sequence[Field]:
    """The fields that an update sets: the values that arrived, and the key columns whose values change."""
    present = [f for f in shape.values if rows.new.kinds[f.index, row] != ABSENT and f.destination.identity != "a"]
    if not rows.has_old[row]:
        return present
    moved = [f for f in shape.key if rows.old.value(f.index, row) != rows.new.value(f.index, row)]
    return [*present, *(f for f in moved if rows.new.kinds[f.index, row] != ABSENT)]


def _known_by(shape: PostgresShape, given: _Values, old: Tuples, row: int) -> str:
    if shape.key:
        return " and ".join([f.equal(f"t.{f.sql}", given.add(f, old, row)) for f in shape.key])
    stored = ", ".join([f"o.{f.sql}" for f in shape.fields])
    wanted = ", ".join([f"({given.add(f, old, row)})::{f.destination.sized_type}" for f in shape.fields])
    matching = f"row({stored})::text = row({wanted})::text"
    return f"({shape.locator}) = (select {shape.locator} from {shape.sql} o where {matching} limit 1)"


# -- Apply. ------------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

_UNIQUE_VIOLATION = "23505"
_PENDING_STATEMENTS = 256
_PENDING_BYTES = 1 << 20
Handler = Callable[[QueryResult], None]
MissesByTable = dict[TableName, Misses]


class _AppliedBefore(Exception):
    """The batch has been applied already."""


class PostgresApplier:
    """Writes batches over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._temporary = TemporaryTables(session)
        self._bulk = Bulk(session, self._temporary)
        self._shapes: dict[TableName, tuple[int, TableSchema, PostgresShape]] = {}

    def write(self, batch: EventBatch) -> Mapping[TableName, Misses]:
        """Applies the batch; returns, by table, the changes that found no row.

        A batch that a table refuses is tried once more where that can help: with the table's present shape, if the
        table may have been altered since its shape was cached, and with `careful`, if keys collide.
        """
        careful: set[TableName] = set()
        while True:
            remembered = set(self._shapes)
            try:
                return self._write_once(batch, careful)
            except DestinationServerError as error:
                if error.at is None:
                    raise
                if error.sqlstate == _UNIQUE_VIOLATION and error.at not in careful:
                    log.warning("%s holds rows that collide with those to be written; writing with care", error.at)
                    careful.add(error.at)
                elif error.at not in remembered:
                    raise

    def _write_once(self, batch: EventBatch, careful: set[TableName]) -> Mapping[TableName, Misses]:
        transaction = _Transaction(self._session, batch)
        try:
            with self._session.rolled_back_on_failure():
                self._temporary.begin()
                for step in batch.steps:
                    self._apply(transaction, step, careful)
                transaction.commit()
        except _AppliedBefore:
            self._temporary.rolled_back()
            return {}
        except BaseException:
            self._shapes.clear()
            self._temporary.rolled_back()
            raise
        return transaction.misses

    def _apply(self, transaction: _Transaction, step: Step, careful: set[TableName]) -> None:
        shape = self._shape(transaction, step.schema)
        if isinstance(step, Truncate):
            transaction.add(_truncate(shape))
            return
        if not isinstance(step, WireRows):
            message = f"Changes of {shape.table} are not in the source's form, which this destination needs."
            raise PgetlError(ErrorKind.INTERNAL, message, table=str(shape.table))
        if can_take(shape, step) and shape.table not in careful:
            for statement, missed in statements(shape, step):
                transaction.add(statement, _counting(transaction.misses, shape.table, missed))
            return
        transaction.flush()
        _add(transaction.misses, shape.table, self._apply_bulk(shape, step, careful))

    def _apply_bulk(self, shape: PostgresShape, rows: WireRows, careful: set[TableName]) -> Misses:
        if not shape.key:
            return self._bulk.apply_bag(shape, fold_bag(rows))
        return self._bulk.apply(shape, fold(rows), careful=shape.table in careful)

    def _shape(self, transaction: _Transaction, schema: TableSchema) -> PostgresShape:
        """The table's shape, cached until the table is copied anew, its schema at the source changes, or a batch fails.
        A table is described only after the metadata has shown that it belongs to the pipeline."""
        generation = transaction.batch.moves[schema.table].target.generation
        known = self._shapes.get(schema.table)
        if known is not None and known[0] == generation and (known[1] is schema or known[1] == schema):
            return known[2]
        transaction.flush()
        shape = describe(self._session, schema)
        self._shapes[schema.table] = generation, schema, shape
        return shape


class _Transaction:
    """The transaction of one batch. Statements are collected until they are worth a round trip."""

    def __init__(self, session: Session, batch: EventBatch) -> None:
        self.batch = batch
        self.misses: MissesByTable = {}
        self._session = session
        self._pending: list[tuple[Statement, Handler | None]] = []
        self._bytes = 0
        self._epoch: int | None = None
        self._records: Mapping[TableName, fencing.TableMetadata] | None = None
        self.add(Statement("begin"))
        self.add(metadata.ask_shared(metadata.of_pipeline(batch.pipeline)))
        self.add(metadata.ask_epoch(batch.pipeline), self._learn_epoch)
        self.add(metadata.ask_records(batch.pipeline, batch.moves), self._decide)

    def add(self, statement: Statement, handler: Handler | None = None) -> None:
        self._pending.append((statement, handler))
        self._bytes += sum(len(value) for value in statement.values if value is not None)
        if len(self._pending) >= _PENDING_STATEMENTS or self._bytes >= _PENDING_BYTES:
            self.flush()

    def flush(self) -> None:
        pending, self._pending, self._bytes = self._pending, [], 0
        answers = self._session.run([statement for statement, _ in pending])
        for (_, handler), answer in zip(pending, answers, strict=True):
            if handler is not None:
                handler(answer)

    def commit(self) -> None:
        """Writes the positions and commits, after every pending statement was answered: an answer may still be a
        refusal."""
        if self._pending:
            self.flush()
        assert self._records is not None, "the first round trip decides"
        self.add(metadata.set_positions(self.batch.pipeline, self._records))
        self.add(Statement("commit"))
        self.flush()

    def _learn_epoch(self, answer: QueryResult) -> None:
        self._epoch = metadata.read_epoch(answer)

    def _decide(self, answer: QueryResult) -> None:
        found = metadata.read_records(answer)
        records = fencing.write(self.batch.epoch, self._epoch, found, self.batch.moves.values())
        if records is None:
            raise _AppliedBefore
        existing_tables.expect_held(metadata.read_holds(answer))
        self._records = {table: record for table, record in records.items() if record != found[table]}


def _truncate(shape: PostgresShape) -> Statement:
    """A table that foreign keys reference cannot be truncated alone; its rows are deleted instead."""
    verb = "delete from" if shape.referenced else "truncate"
    return Statement(f"{verb} {shape.sql}", table=shape.table)


def _counting(misses: MissesByTable, table: TableName, missed: Misses | None) -> Handler:
    def count(answer: QueryResult) -> None:
        if answer.touched:
            return
        if missed is None:
            raise kept_out(table)
        _add(misses, table, missed)

    return count


def _add(misses: MissesByTable, table: TableName, missed: Misses) -> None:
    if missed != Misses():
        misses[table] = misses.get(table, Misses()) + missed
