"""Whose a table is: what lies where it is to be copied to, and what lies where it was published.

A table is a pipeline's own once the pipeline has published a copy in it, and until another does; the log says so. Each
write of changes asks, of the snapshot that it commits on, whether the table is still the pipeline's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from deltalake.schema import Field

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations import occupied
from airflow_provider_pgetl.engine.destinations.delta.book import Begun
from airflow_provider_pgetl.engine.destinations.delta.log import TableLog
from airflow_provider_pgetl.engine.destinations.delta.shape import KIND, Shape
from airflow_provider_pgetl.engine.destinations.delta.storage import TAKE_AWAY
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.tables import TableName

_STAGED = re.compile(r"_pgetl/|copy-[^/]+-\d+/")
_STRAY = "lies where there are files that are no Delta table's"
_OF_ANOTHER = "holds rows that another pipeline wrote"
_HISTORY = 'holds the entries of a history, which mode = "upsert" does not keep'


def in_the_way(log: TableLog, *, history: bool, fields: Sequence[Field] = ()) -> str | None:
    """As the end of a sentence; None if there is nothing. Of a log that was just loaded. `history`: whether the copy
    only adds to a history that is there, if that has these `fields` with the same types. Nobody could bring back what
    had happened."""
    if not log.exists:
        return _STRAY if any(not _STAGED.match(path) for path in log.place.list("")) else None
    if not log.files():
        return None
    if log.held:
        return _history_of_ours(log, history, fields)
    if log.writer is None and log.was_published:
        return _OF_ANOTHER
    return occupied.rows_of(log.writer)


def _history_of_ours(log: TableLog, history: bool, fields: Sequence[Field]) -> str | None:
    if KIND not in log.column_names:
        return None
    if not history:
        return _HISTORY
    retyped = log.retyped(fields)
    return f"holds the entries of a history, in which {', '.join(retyped)} had another type" if retyped else None


def expect_free(log: TableLog, target: Target, shape: Shape) -> None:
    """Refuse a place that holds what the pipeline may not replace, or cannot."""
    if log.unfit is not None:
        raise _unfit(target.schema.table, log.unfit)
    if log.exists and (columns := log.table.metadata().partition_columns):
        table = target.schema.table
        message = f"{table} in the destination is partitioned by {', '.join(columns)}; pgetl writes plain tables."
        remedy = "Remove it, or give the table another `destination`; then roll it back."
        raise PgetlError(ErrorKind.SCHEMA, message, remedy=remedy, table=str(table))
    holds = None if target.replaces else in_the_way(log, history=shape.history, fields=shape.fields)
    if holds is not None:
        raise occupied.refusal(target.schema.table, holds)


def lost(log: TableLog, begun: Begun, table: TableName) -> PgetlError | None:
    """Why what the pipeline has published is not there to be written to; None if it is, or while it is copied anew. Of
    a log that was just loaded, and of a table that was published at least once."""
    if not log.exists:
        return occupied.dropped(table)
    record = log.standing().record
    if record is not None and (record.position is None or record.attempt < begun.attempt):
        return None
    if log.held and record is not None:
        return _impaired(log, table)
    if log.held:
        return occupied.exchanged(table)
    return occupied.replaced(table, log.other_holder) if log.was_published else occupied.exchanged(table)


def _impaired(log: TableLog, table: TableName) -> PgetlError | None:
    """What is to be taken away first comes first."""
    if log.unfit is not None:
        return _unfit(table, log.unfit)
    return None if log.overruled is None else occupied.overruled(table, log.overruled)


def _unfit(table: TableName, what: str) -> PgetlError:
    message = f"{table} in the destination cannot be written to as it is: others have given it {what}."
    return PgetlError(ErrorKind.SCHEMA, message, remedy=TAKE_AWAY, table=str(table))
