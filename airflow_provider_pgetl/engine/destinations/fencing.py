"""Fencing: pure decisions on who may write, made from what a destination has recorded.

A destination that stores positions keeps the epoch last claimed for each pipeline, and a `TableMetadata` record for
each table. The functions here return the new record (or None if there is nothing to do), or raise `Fenced`. The caller
reads the record, calls the function, and stores the result, all in one transaction together with the data.

Rules
* Epochs, generations and attempts only rise.
* A copy that begins removes the table's position: until the copy is published, no changes can be written to the table.
* Every request may arrive twice. A request that has already taken effect is granted and changes nothing, even if the
  table has moved on since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from airflow_provider_pgetl.engine.changes.batch import Move, TablePosition
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, Finding, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """What a destination records of one table.

    `attempt` is the latest copy attempt that has begun (0: none), `published` the attempt whose rows the table holds.
    `position` is None from the begin of a copy until its publication.
    """

    generation: int
    attempt: int = 0
    published: int = 0
    position: Boundary | None = None

    @property
    def table_position(self) -> TablePosition | None:
        return None if self.position is None else TablePosition(self.generation, self.position)


UNKNOWN = TableMetadata(generation=0)


def claim(recorded: int | None, epoch: int) -> int:
    """Returns the pipeline's epoch after `epoch` has claimed the destination."""
    if recorded is not None and epoch < recorded:
        raise Fenced(f"Epoch {epoch} came too late: epoch {recorded} has claimed the destination.")
    return epoch


def begin(record: TableMetadata | None, generation: int, attempt: int, table: TableName) -> TableMetadata:
    """Returns the record after the copy attempt has begun; the same record if it had begun before."""
    known = record or UNKNOWN
    _refuse_superseded(known, generation, attempt, table)
    if (known.generation, known.attempt) == (generation, attempt):
        return known
    return TableMetadata(generation, attempt)


def check_range(record: TableMetadata | None, generation: int, attempt: int, table: TableName) -> None:
    """Raises `Fenced` if the attempt may not stage rows, or not any more."""
    known = record or UNKNOWN
    _refuse_other_attempt(known, generation, attempt, table)
    if known.published == attempt:
        raise Fenced(f"Copy attempt {attempt} of {table} is already published.", table=str(table))


def expect_ranges(found: int, stored: int | None, attempt: int, table: TableName) -> None:
    """Raises if fewer ranges of a copy are found than were stored. `stored` is None if that number is not known."""
    if stored is not None and found < stored:
        lost = f"Of the {stored} ranges that copy attempt {attempt} has stored of {table}, the destination has {found}"
        raise PgetlError(ErrorKind.COPY_DIED, f"{lost}: it was restored meanwhile.", table=str(table))


def finish(
    record: TableMetadata | None, generation: int, attempt: int, position: Boundary, table: TableName
) -> TableMetadata | None:
    """Returns the record after the attempt is published; None if it was published before."""
    known = record or UNKNOWN
    if (known.attempt, known.published) == (attempt, attempt) and known.generation >= generation:
        return None
    _refuse_other_attempt(known, generation, attempt, table)
    return replace(known, published=attempt, position=position)


def adopt(record: TableMetadata | None, generation: int, table: TableName) -> TableMetadata:
    """Returns the record after the table has been adopted by `generation`; an equal record if it had been before."""
    known = record or UNKNOWN
    if generation < known.generation:
        raise Fenced(f"Generation {generation} of {table} was superseded by {known.generation}.", table=str(table))
    if known.position is None:
        raise Fenced(f"{table} has no position that generation {generation} could go on from.", table=str(table))
    return replace(known, generation=generation)


def write(
    epoch: int, claimed: int | None, records: Mapping[TableName, TableMetadata], moves: Iterable[Move]
) -> Mapping[TableName, TableMetadata] | None:
    """Returns the records after a batch is applied; None if it was applied before (and the response was lost).

    A table's position says which changes the table has. So if all tables are at the positions that the batch leads to,
    the batch's changes are in them.
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


def _moved(record: TableMetadata, move: Move) -> TableMetadata:
    table = move.target.schema.table
    if record.position != move.expected or move.to < move.expected:
        found = "at no position" if record.position is None else f"at {record.position}"
        raise Fenced(f"{table} is {found}, and cannot move from {move.expected} to {move.to}.", table=str(table))
    return replace(record, position=move.to)


def _refuse_other_generation(record: TableMetadata | None, move: Move) -> None:
    table, wanted = move.target.schema.table, move.target.generation
    if record is None or record.generation != wanted:
        found = "none" if record is None else str(record.generation)
        raise Fenced(f"{table} is of generation {found} in the destination, not {wanted}.", table=str(table))


def _refuse_superseded(known: TableMetadata, generation: int, attempt: int, table: TableName) -> None:
    if attempt < known.attempt:
        message = f"Copy attempt {attempt} of {table} was superseded by {known.attempt}."
        raise Fenced(message, table=str(table))
    if generation < known.generation:
        message = f"Copy attempt {attempt} of {table} is of generation {generation}, superseded by {known.generation}."
        raise Fenced(message, table=str(table))


def _refuse_other_attempt(known: TableMetadata, generation: int, attempt: int, table: TableName) -> None:
    _refuse_superseded(known, generation, attempt, table)
    if (known.generation, known.attempt) != (generation, attempt):
        raise Fenced(f"Copy attempt {attempt} of {table} never began in the destination.", table=str(table))


# -- Foreign rows: rows in a destination table that are not this pipeline's. -------------------------------------------
#
# A copy replaces the table, which would destroy data if the configuration names the wrong database. So a table with
# rows is not replaced, unless the configuration allows it (`existing = "replace"`) or the pipeline itself has published
# what the table holds. After another pipeline or a person has replaced a table that the pipeline published, the
# pipeline does not write to it any more.

REMEDY = (
    "Rename or empty it there, or give the table another `destination`; "
    'or, if all that is in it may go, set `existing = "replace"` for it.'
)

COPY_AGAIN = "Copy the table again: `pgetl reset FILE TABLE`."
_ANOTHER_PLACE = (
    "Give the table another `destination` in one of the two pipelines, or take it out of one of them; "
    "then roll it back in the other."
)


def rows_of(writer: str | None) -> str:
    """Returns what a table holds, as the end of a sentence. `writer`: the pipeline that wrote the rows, if known."""
    return f"holds rows that pipeline {writer} wrote" if writer else "holds rows that pgetl did not write"


def foreign_rows_error(table: TableName, holds: str) -> str:
    return f"{table} in the destination {holds}: a copy would replace them."


def refusal(table: TableName, holds: str) -> PgetlError:
    """Returns the error that `begin_copy` and `finish_copy` raise for a table with foreign rows."""
    remedy = f"{REMEDY} Then roll the table back."
    return PgetlError(ErrorKind.OCCUPIED, foreign_rows_error(table, holds), remedy=remedy, table=str(table))


def replaced(table: TableName, holder: str | None) -> PgetlError:
    """Returns the error that a write raises if another pipeline has replaced this pipeline's copy by its own."""
    whose = f"pipeline {holder} has" if holder else "another pipeline has"
    message = f"{table} in the destination is not this pipeline's any more: {whose} replaced it by its own copy."
    return PgetlError(ErrorKind.OCCUPIED, message, remedy=_ANOTHER_PLACE, table=str(table))


def dropped(table: TableName) -> PgetlError:
    message = f"{table} was dropped in the destination."
    return PgetlError(ErrorKind.SCHEMA, message, remedy=COPY_AGAIN, table=str(table))


def exchanged(table: TableName) -> PgetlError:
    message = f"{table} in the destination is not the table that was copied: that was dropped or renamed."
    return PgetlError(ErrorKind.SCHEMA, message, remedy=f"{REMEDY} {COPY_AGAIN}", table=str(table))


def overruled(table: TableName, operation: str) -> PgetlError:
    message = f"{table} in the destination is not as it was written: others have made a commit to it ({operation})."
    return PgetlError(ErrorKind.SCHEMA, message, remedy=COPY_AGAIN, table=str(table))


def unlogged(table: TableName) -> PgetlError:
    message = f"{table} in the destination is unlogged, or a partition of it is: a crash of the server empties it."
    remedy = f"`ALTER TABLE {table.sql} SET LOGGED` there, then copy the table again: `pgetl reset FILE TABLE`."
    return PgetlError(ErrorKind.SCHEMA, message, remedy=remedy, table=str(table))


def finding(table: TableName, place: TableName, holds: str, *, replaces: bool) -> Finding:
    """Returns the preflight's finding for the source table `table`, which would be copied to `place`."""
    if replaces:
        return Finding(
            foreign_rows_error(place, holds), 'It does, for `existing = "replace"`.', "warning", table=str(table)
        )
    return Finding(foreign_rows_error(place, holds), REMEDY, table=str(table))
