"""Whose rows a table holds: this pipeline's, another's, or somebody's who is not pgetl.

A table is a pipeline's own once the pipeline has published a copy in it, and stays so when the pipeline is forgotten.
It is known by its OID: one that was created in its place is another table. Each write of changes asks, in its own
transaction, whether the table is still the pipeline's own, has the columns that were published, and outlives a crash.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations import occupied
from airflow_provider_pgetl.engine.destinations.postgres import metadata
from airflow_provider_pgetl.engine.destinations.postgres.metadata import Hold
from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.tables import TableName


def of_others(session: Session, pipeline: str, tables: Collection[TableName]) -> Mapping[TableName, str]:
    """Those of the tables that hold rows of others, and what they hold. Changes nothing."""
    holders = metadata.holders(session, tables) if metadata.present(session) else {}
    there = [table for table in _present(session, tables) if holders.get(table) != pipeline]
    return {table: occupied.rows_of(holders.get(table)) for table in there if _filled(session, table)}


def expect_free(session: Session, target: Target) -> None:
    """Refuse a table that holds what the pipeline may not replace."""
    table = target.schema.table
    if target.replaces:
        return
    for holds in of_others(session, target.pipeline, [table]).values():
        raise occupied.refusal(table, holds)


def lost(session: Session, pipeline: str) -> Mapping[TableName, PgetlError]:
    """The tables that the pipeline follows and could not write to now, each with the reason. Changes nothing."""
    if not metadata.present(session):
        return {}
    found = {table: _wrong(hold, table) for table, hold in metadata.holds(session, pipeline).items()}
    return {table: error for table, error in found.items() if error is not None}


def expect_held(holds: Mapping[TableName, Hold]) -> None:
    """Refuse to write to a table that is not, or not as it was, what the pipeline has published."""
    for table, hold in holds.items():
        error = _wrong(hold, table)
        if error is not None:
            raise error


def _wrong(hold: Hold, table: TableName) -> PgetlError | None:
    if not hold.held:
        return occupied.replaced(table, hold.holder)
    if hold.found is None:
        return occupied.dropped(table)
    if hold.found != hold.relation:
        return occupied.exchanged(table)
    if hold.columns_found != hold.columns:
        message = f"The columns of {table} were altered in the destination: {_altered(hold)}."
        return PgetlError(ErrorKind.SCHEMA, message, remedy=occupied.COPY_AGAIN, table=str(table))
    if hold.unlogged:
        return occupied.unlogged(table)
    return None


def _altered(hold: Hold) -> str:
    """Each column is told as its number, its name and its type."""
    before, now = (set((text or "").split(", ")) - {""} for text in (hold.columns, hold.columns_found))
    gone, come = (", ".join(sorted(one.partition(" ")[2] for one in some)) for some in (before - now, now - before))
    return f"{gone or 'nothing'} became {come or 'nothing'}"


def _present(session: Session, tables: Collection[TableName]) -> list[TableName]:
    asked = json.dumps([{"s": table.schema, "t": table.name} for table in tables])
    return [TableName(schema, name) for schema, name in session.rows(_PRESENT, (asked,))]


def _filled(session: Session, table: TableName) -> bool:
    return bool(session.rows(f"select exists (select from {table.sql})")[0][0])


_PRESENT = """
select s, t from json_to_recordset($1::json) as asked (s text, t text)
where to_regclass(format('%I.%I', s, t)) is not null
"""
