"""A preview of transformed rows, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_pgetl.cli.board import printable, table_words
from airflow_provider_pgetl.engine.model.previews import ColumnPreview, TablePreview, Text

_WIDTH = 60


def preview_lines(found: Sequence[TablePreview]) -> Iterator[str]:
    if not found:
        yield "No table has a rule that transforms a column."
    for one in found:
        yield f"{table_words(one.table)}: {_summary(one)}"
        if one.failure is not None:
            yield f"  {one.failure.message} {one.failure.remedy}"
        for at in range(one.rows if one.transformed else 0):
            yield f"  row {at + 1}"
            width = max(len(column.name) for column in one.transformed)
            for column in one.transformed:
                yield f"    {printable(column.name):<{width}}  {_shown(column.before[at])} → {_shown(column.after[at])}"


def _summary(one: TablePreview) -> str:
    if one.failure is not None:
        return "cannot be transformed"
    if not one.transformed:
        return "no column is transformed"
    return ", ".join(map(_rule, one.transformed)) + ("" if one.rows else "; it has no rows")


def _rule(column: ColumnPreview) -> str:
    return f"{printable(column.name)} by {column.use}"


def _shown(text: Text) -> str:
    if text is None:
        return "NULL"
    short = text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
    return f'"{printable(short)}"'
