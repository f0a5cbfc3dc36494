"""Tables of a destination that a pipeline would replace, though they hold what it did not write.

A copy replaces the table, and nobody who has named the wrong database wants that. So what is there already is left
alone, unless a person has said that it may go, or the pipeline itself has published it before.
"""

from __future__ import annotations

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.findings import Finding
from airflow_provider_pgetl.engine.tables import TableName

REMEDY = (
    "Rename or empty it there, or give the table another `destination`; "
    'or, if all that is in it may go, set `existing = "replace"` for it.'
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


def finding(table: TableName, place: TableName, holds: str, *, replaces: bool) -> Finding:
    """What a preflight says of the source's `table` that goes to that place."""
    if replaces:
        return Finding(complaint(place, holds), 'It does, for `existing = "replace"`.', "warning", table=str(table))
    return Finding(complaint(place, holds), REMEDY, table=str(table))
