"""Who may write: pure decisions over what a destination has recorded.

A destination that stores positions keeps, per pipeline, the epoch last claimed and, per table, a `Record`. Each
function here answers the new record (or that there is nothing to do), or raises `Fenced`. The caller reads the record,
asks, and stores the answer, all in one transaction of its own, with the data.

Rules
* An epoch, a generation and an attempt only rise.
* A copy that begins takes the table's position away: until it is published, nobody can write changes to the table.
* Every request may arrive twice. One that has taken effect already is granted and changes nothing, even when the table
  has moved on since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from airflow_provider_pgetl.engine.changes.batch import Move, TablePosition
from airflow_provider_pgetl.engine.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.tables import TableName


@dataclass(frozen=True, slots=True)
class Record:
    """What a destination remembers of a table.

    `attempt` is the latest copy attempt that began (0: none), `published` the one whose rows the table holds.
    `position` is None from a copy's begin until its publication.
    """

    generation: int
    attempt: int = 0
    published: int = 0
    position: Boundary | None = None

    @property
    def table_position(self) -> TablePosition | None:
        return None if self.position is None else TablePosition(self.generation, self.position)


UNKNOWN = Record(generation=0)


def claim(recorded: int | None, epoch: int) -> int:
    """The pipeline's epoch once `epoch` has claimed it."""
    if recorded is not None and epoch < recorded:
        raise Fenced(f"Epoch {epoch} came too late: epoch {recorded} has claimed the destination.")
    return epoch


def begin(record: Record | None, generation: int, attempt: int, table: TableName) -> Record:
    """The record once the copy attempt has begun; itself when it had begun before."""
    known = record or UNKNOWN
    _refuse_superseded(known, generation, attempt, table)
    if (known.generation, known.attempt) == (generation, attempt):
        return known
    return Record(generation, attempt)


def check_range(record: Record | None, generation: int, attempt: int, table: TableName) -> None:
    """Whether the attempt may still stage rows."""
    known = record or UNKNOWN
    _refuse_other_attempt(known, generation, attempt, table)
    if known.published == attempt:
        raise Fenced(f"Copy attempt {attempt} of {table} is already published.", table=str(table))


def expect_ranges(found: int, stored: int | None, attempt: int, table: TableName) -> None:
    """Whether all that was stored of a copy is still there to be published."""
    if stored is not None and found < stored:
        lost = f"Of the {stored} ranges that copy attempt {attempt} has stored of {table}, the destination has {found}"
        raise PgetlError(ErrorKind.COPY_DIED, f"{lost}: it was restored meanwhile.", table=str(table))


def finish(record: Record | None, generation: int, attempt: int, position: Boundary, table: TableName) -> Record | None:
    """The record once the attempt is published; None when it was published before."""
    known = record or UNKNOWN
    if (known.attempt, known.published) == (attempt, attempt) and known.generation >= generation:
        return None
    _refuse_other_attempt(known, generation, attempt, table)
    return replace(known, published=attempt, position=position)


def adopt(record: Record | None, generation: int, table: TableName) -> Record:
    """The record once the table belongs to `generation`; itself when it did before."""
    known = record or UNKNOWN
    if generation < known.generation:
        raise Fenced(f"Generation {generation} of {table} was superseded by {known.generation}.", table=str(table))
    if known.position is None:
        raise Fenced(f"{table} has no position that generation {generation} could go on from.", table=str(table))
    return replace(known, generation=generation)


def write(
    epoch: int, claimed: int | None, records: Mapping[TableName, Record], moves: Iterable[Move]
) -> Mapping[TableName, Record] | None:
    """The records once a batch is applied; None when it was applied before (an answer was lost).

    That a table stands where the batch leads to says that the batch's changes are in: a position means just that.
    """
    if claimed != epoch:
        raise Fenced(f"Epoch {epoch} may not write: the destination belongs to epoch {claimed}.")
    asked = tuple(moves)
    for move in asked:
        _refuse_other_generation(records.get(move.target.schema.table), move)
    leads_on = any(move.to != move.expected for move in asked)
    if leads_on and all(records[move.target.schema.table].position == move.to for move in asked):
        return None
    return {move.target.schema.table: _moved(records[move.target.schema.table], move) for move in asked}


def _moved(record: Record, move: Move) -> Record:
    table = move.target.schema.table
    if record.position != move.expected or move.to < move.expected:
        found = "at no position" if record.position is None else f"at {record.position}"
        raise Fenced(f"{table} is {found}, and cannot move from {move.expected} to {move.to}.", table=str(table))
    return replace(record, position=move.to)


def _refuse_other_generation(record: Record | None, move: Move) -> None:
    table, wanted = move.target.schema.table, move.target.generation
    if record is None or record.generation != wanted:
        found = "none" if record is None else str(record.generation)
        raise Fenced(f"{table} is of generation {found} in the destination, not {wanted}.", table=str(table))


def _refuse_superseded(known: Record, generation: int, attempt: int, table: TableName) -> None:
    if attempt < known.attempt:
        message = f"Copy attempt {attempt} of {table} was superseded by {known.attempt}."
        raise Fenced(message, table=str(table))
    if generation < known.generation:
        message = f"Copy attempt {attempt} of {table} is of generation {generation}, superseded by {known.generation}."
        raise Fenced(message, table=str(table))


def _refuse_other_attempt(known: Record, generation: int, attempt: int, table: TableName) -> None:
    _refuse_superseded(known, generation, attempt, table)
    if (known.generation, known.attempt) != (generation, attempt):
        raise Fenced(f"Copy attempt {attempt} of {table} never began in the destination.", table=str(table))
