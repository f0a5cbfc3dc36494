"""Whose rows a table holds: this pipeline's, another's, or somebody's who is not pgetl.

A table is a pipeline's own once the pipeline has published a copy in it, and stays so when the pipeline is forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations import occupied
from airflow_provider_pgetl.engine.destinations.postgres import metadata
from airflow_provider_pgetl.engine.destinations.postgres.session import Session
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


def _present(session: Session, tables: Collection[TableName]) -> list[TableName]:
    asked = json.dumps([{"s": table.schema, "t": table.name} for table in tables])
    return [TableName(schema, name) for schema, name in session.rows(_PRESENT, (asked,))]


def _filled(session: Session, table: TableName) -> bool:
    return bool(session.rows(f"select exists (select from {table.sql})")[0][0])


_PRESENT = """
select s, t from json_to_recordset($1::json) as asked (s text, t text)
where to_regclass(format('%I.%I', s, t)) is not null
"""
