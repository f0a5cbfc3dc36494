"""From what a stream gathered to the batch that a destination is handed.

The gathered steps stay where they are, in memory or on disk; a batch reads them as it is iterated, for just those
tables whose positions it moves. So the same gathering serves a retry that leaves a table out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_pgetl.engine.changes.batch import EventBatch, Move, Step, Truncate
from airflow_provider_pgetl.engine.changes.rows import sealed_rows
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.source.drift import ColumnForm, Description, alike, differences, tells_key
from airflow_provider_pgetl.engine.sync.commands import Planned
from airflow_provider_pgetl.engine.sync.routes import Route, Routes
from airflow_provider_pgetl.engine.table_names import written
from airflow_provider_pgetl.engine.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.wal.messages import Relation
from airflow_provider_pgetl.engine.wal.steps import Sealed, TruncateStep
from airflow_provider_pgetl.engine.wal.steps import Step as GatheredStep


@dataclass(slots=True)
class GatheredSteps:
    """The steps of the tables in `tables`, in their order; iterable again and again. `rows` is how many rows whoever
    iterates has been given, the last time that it did."""

    gathered: Iterable[GatheredStep[Route]]
    tables: frozenset[TableName]
    rows: int = 0

    def __iter__(self) -> Iterator[Step]:
        self.rows = 0
        for step in self.gathered:
            if step.key.table in self.tables:
                yield _step(step)
                self.rows += 0 if isinstance(step, TruncateStep) else len(step)


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
    match step:
        case Sealed():
            expect_fit(step.relation, step.leaves, schema, step.key.table)
            return sealed_rows(schema, step.data, step.lengths, step.commits, step.ordinals)
        case TruncateStep():
            expect_fit(step.relation, (), schema, step.key.table)
            return Truncate(schema, step.commit_lsn, step.ordinal)


def expect_fit(relation: Relation, leaves: Sequence[Relation], schema: TableSchema, table: TableName) -> None:
    """Refuse rows of a relation that is not as it was when it was copied, and of partitions that tell another key."""
    found = differences(schema, _description(relation))
    if found:
        raise changed_at_source(table, schema.table, found)
    for leaf in leaves:
        if not tells_key(leaf.identity, [column.name for column in leaf.columns if column.key], schema):
            raise PgetlError(
                ErrorKind.UNKNOWN_ROW,
                f"The replica identity of {leaf.table}, a partition of {table}, is another than that of {table}: "
                "its updates and deletes do not say which row they are about.",
                remedy=f"{alike(leaf.table)}, then copy the table again: {reset_command(table)}.",
                table=str(schema.table),
            )


def changed_at_source(table: TableName, destination: TableName, found: Sequence[str]) -> PgetlError:
    """The error of a table that is not any more as it was when it was copied."""
    return PgetlError(
        ErrorKind.SCHEMA,
        f"{table} was changed at the source since it was copied: {', '.join(found)}.",
        remedy=(
            f"Copy the table again: {reset_command(table)}. "
            "If pgetl did not make the destination's table, change its columns alike first."
        ),
        table=str(destination),
    )


def reset_command(table: TableName) -> str:
    return f"`pgetl reset FILE {shlex.quote(written(table))}`"


def _description(relation: Relation) -> Description:
    columns = {column.name: ColumnForm(column.type, column.modifier) for column in relation.columns}
    told = frozenset(column.name for column in relation.columns if column.key)
    return Description(columns, relation.identity, told)
