"""Tables of a destination that a pipeline would replace, though they hold what it did not write.

A copy replaces the table, and nobody who has named the wrong database wants that. So what is there already is left
alone, unless a person has said that it may go, or the pipeline itself has published it before. And what it has
published it does not write to any more, once another pipeline or a person has put something else in its place.
"""

from __future__ import annotations

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.findings import Finding
from airflow_provider_pgetl.engine.tables import TableName

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
    """What a table holds, as the end of a sentence. `writer`: the pipeline that is known to have written it."""
    return f"holds rows that pipeline {writer} wrote" if writer else "holds rows that pgetl did not write"


def complaint(table: TableName, holds: str) -> str:
    return f"{table} in the destination {holds}: a copy would replace them."


def refusal(table: TableName, holds: str) -> PgetlError:
    """What `begin_copy` and `finish_copy` raise."""
    remedy = f"{REMEDY} Then roll the table back."
    return PgetlError(ErrorKind.OCCUPIED, complaint(table, holds), remedy=remedy, table=str(table))


def replaced(table: TableName, holder: str | None) -> PgetlError:
    """What a write raises, of a table that another pipeline has published in the place of this pipeline's copy."""
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
    """What a preflight says of the source's `table` that goes to that place."""
    if replaces:
        return Finding(complaint(place, holds), 'It does, for `existing = "replace"`.', "warning", table=str(table))
    return Finding(complaint(place, holds), REMEDY, table=str(table))
