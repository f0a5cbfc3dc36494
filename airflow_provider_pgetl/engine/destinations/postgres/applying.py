"""A batch as one transaction: whole, in order, and only by its owner.

The transaction begins, takes its share of the pipeline's lock and reads the epoch and the tables' records; the pure
rules of `fencing` decide; data and positions are written; it commits. Small steps travel in the very round trip that
asks for the decision, because what a refused transaction wrote is rolled back: a tiny batch is two round trips.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from airflow_provider_pgetl.engine.changes.batch import EventBatch, Step, Truncate
from airflow_provider_pgetl.engine.changes.fold import fold, fold_bag
from airflow_provider_pgetl.engine.changes.rows import WireRows
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.postgres import locks, metadata, occupancy, single
from airflow_provider_pgetl.engine.destinations.postgres.bulk import Bulk
from airflow_provider_pgetl.engine.destinations.postgres.session import Answer, ServerError, Session, Statement
from airflow_provider_pgetl.engine.destinations.postgres.shape import Shape, describe, kept_out
from airflow_provider_pgetl.engine.destinations.postgres.temporary import TemporaryTables
from airflow_provider_pgetl.engine.destinations.protocol import Misses
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.tables import TableName, TableSchema

log = logging.getLogger(__name__)

_UNIQUE_VIOLATION = "23505"
_PENDING_STATEMENTS = 256
_PENDING_BYTES = 1 << 20
Handler = Callable[[Answer], None]
MissesByTable = dict[TableName, Misses]


class _AppliedBefore(Exception):
    """The batch is in the destination already."""


class Applier:
    """Writes batches over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._temporary = TemporaryTables(session)
        self._bulk = Bulk(session, self._temporary)
        self._shapes: dict[TableName, tuple[int, TableSchema, Shape]] = {}

    def write(self, batch: EventBatch) -> Mapping[TableName, Misses]:
        """Apply the batch; answers what hit no row.

        A table that refuses is tried once more where that can help: as it looks now, if it may have been altered since
        we looked, and with care, if keys collide.
        """
        careful: set[TableName] = set()
        while True:
            remembered = set(self._shapes)
            try:
                return self._write_once(batch, careful)
            except ServerError as error:
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
        if single.can_take(shape, step) and shape.table not in careful:
            for statement, missed in single.statements(shape, step):
                transaction.add(statement, _counting(transaction.misses, shape.table, missed))
            return
        transaction.flush()
        _add(transaction.misses, shape.table, self._apply_bulk(shape, step, careful))

    def _apply_bulk(self, shape: Shape, rows: WireRows, careful: set[TableName]) -> Misses:
        if not shape.key:
            return self._bulk.apply_bag(shape, fold_bag(rows))
        return self._bulk.apply(shape, fold(rows), careful=shape.table in careful)

    def _shape(self, transaction: _Transaction, schema: TableSchema) -> Shape:
        """Known until the table is copied anew, its source's schema changes, or a batch fails. Nobody looks at a table
        before it is known to be ours."""
        generation = transaction.batch.moves[schema.table].target.generation
        known = self._shapes.get(schema.table)
        if known is not None and known[0] == generation and (known[1] is schema or known[1] == schema):
            return known[2]
        transaction.flush()
        shape = describe(self._session, schema)
        self._shapes[schema.table] = generation, schema, shape
        return shape


class _Transaction:
    """Statements wait here until they are worth a round trip."""

    def __init__(self, session: Session, batch: EventBatch) -> None:
        self.batch = batch
        self.misses: MissesByTable = {}
        self._session = session
        self._pending: list[tuple[Statement, Handler | None]] = []
        self._bytes = 0
        self._epoch: int | None = None
        self._records: Mapping[TableName, fencing.Record] | None = None
        self.add(Statement("begin"))
        self.add(locks.ask_shared(locks.of_pipeline(batch.pipeline)))
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
        """Once everything is answered: an answer may still be a refusal."""
        if self._pending:
            self.flush()
        assert self._records is not None, "the first round trip decides"
        self.add(metadata.set_positions(self.batch.pipeline, self._records))
        self.add(Statement("commit"))
        self.flush()

    def _learn_epoch(self, answer: Answer) -> None:
        self._epoch = metadata.read_epoch(answer)

    def _decide(self, answer: Answer) -> None:
        found = metadata.read_records(answer)
        records = fencing.write(self.batch.epoch, self._epoch, found, self.batch.moves.values())
        if records is None:
            raise _AppliedBefore
        occupancy.expect_held(metadata.read_holds(answer))
        self._records = {table: record for table, record in records.items() if record != found[table]}


def _truncate(shape: Shape) -> Statement:
    """A table that foreign keys point to cannot be truncated alone; it is emptied."""
    verb = "delete from" if shape.referenced else "truncate"
    return Statement(f"{verb} {shape.sql}", table=shape.table)


def _counting(misses: MissesByTable, table: TableName, missed: Misses | None) -> Handler:
    def count(answer: Answer) -> None:
        if answer.touched:
            return
        if missed is None:
            raise kept_out(table)
        _add(misses, table, missed)

    return count


def _add(misses: MissesByTable, table: TableName, missed: Misses) -> None:
    if missed != Misses():
        misses[table] = misses.get(table, Misses()) + missed
