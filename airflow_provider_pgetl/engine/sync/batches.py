"""From what a stream gathered to the batch that a destination is handed.

The gathered steps stay where they are, in memory or on disk; a batch reads them as it is iterated, for just those
tables whose positions it moves. So the same gathering serves a retry that leaves a table out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_pgetl.engine.changes.batch import EventBatch, Move, Step, Truncate
from airflow_provider_pgetl.engine.changes.rows import sealed_rows
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.sync.commands import Planned
from airflow_provider_pgetl.engine.sync.routes import Route, Routes
from airflow_provider_pgetl.engine.table_names import written
from airflow_provider_pgetl.engine.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.wal.messages import Relation
from airflow_provider_pgetl.engine.wal.steps import Sealed, TruncateStep
from airflow_provider_pgetl.engine.wal.steps import Step as GatheredStep


@dataclass(frozen=True, slots=True)
class GatheredSteps:
    """The steps of the tables in `tables`, in their order; iterable again and again."""

    gathered: Iterable[GatheredStep[Route]]
    tables: frozenset[TableName]

    def __iter__(self) -> Iterator[Step]:
        return (_step(step) for step in self.gathered if step.key.table in self.tables)


def event_batch(
    pipeline: str,
    epoch: int,
    routes: Routes,
    moves: Mapping[TableName, Planned],
    gathered: Iterable[GatheredStep[Route]],
) -> EventBatch:
    planned = {
        routes.destination_name(table): Move(routes.target(table, move.generation), move.expected, move.to)
        for table, move in moves.items()
    }
    return EventBatch(pipeline, epoch, planned, GatheredSteps(gathered, frozenset(moves)))


def _step(step: GatheredStep[Route]) -> Step:
    schema = step.key.schema
    expect_fit(step.relation, schema, step.key.table)
    match step:
        case Sealed():
            return sealed_rows(schema, step.data, step.lengths, step.commits, step.ordinals)
        case TruncateStep():
            return Truncate(schema, step.commit_lsn, step.ordinal)


def expect_fit(relation: Relation, schema: TableSchema, table: TableName) -> None:
    """Refuse rows of a relation that has other columns than the version that was copied."""
    sent = [(column.name, column.type) for column in relation.columns]
    known = [(column.name, column.type.oid) for column in schema.columns]
    if sent == known:
        return
    raise PgetlError(
        ErrorKind.SCHEMA,
        f"The columns of {table} were changed at the source: {_difference(sent, known)}.",
        remedy=(
            f"Copy the table again: `pgetl reset FILE {shlex.quote(written(table))}`. "
            "If pgetl did not make the destination's table, change its columns alike first."
        ),
        table=str(schema.table),
    )


def _difference(sent: list[tuple[str, int]], known: list[tuple[str, int]]) -> str:
    now, before = dict(sent), dict(known)
    parts = [f"{name} was added" for name in now if name not in before]
    parts += [f"{name} was dropped" for name in before if name not in now]
    parts += [f"{name} has another type" for name in now if name in before and now[name] != before[name]]
    return ", ".join(parts) or "their order differs"
