"""The methods by which OpenLineage's listener asks a task, for all tasks of a pipeline.

Copies are told by `data_sync`, the stream by `apply`, merges by `merge`: with tables, columns, and the figures of a
copy that was made. All others tell of no table, but when they fail because one is Errored: then its reason and remedy
are told, as they stand in the error's message as well, which the listener adds.

`apply` is deferred for as long as it streams, and nobody is asked meanwhile: what it is about is told when it starts
(and again when it is resumed), and once more when it ends, rotates, or fails.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_pgetl.connections import STATE, value
from airflow_provider_pgetl.engine.model.errors import PgetlError

if TYPE_CHECKING:
    from airflow_provider_pgetl.declarations import Replication
    from airflow_provider_pgetl.engine.model.tables import TableName
    from airflow_provider_pgetl.engine.state.survey import TableDescription
    from airflow_provider_pgetl.openlineage.facets import Lineage

# The listener gives up after ten seconds, and then nothing is told.
_PATIENCE_SECONDS = 3

Stage = Literal["started", "succeeded", "failed"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Moves:
    """The tables whose data a task brings to the destination, as `copies` or as changes. `has_copied`: the task has
    made these copies, or waited for them; False where it has found them made."""

    tables: Sequence[TableName] = ()
    copies: bool = False
    has_copied: bool = False


class TellsOpenLineage:
    """For operators with a `replication`. None of the methods of OpenLineage's names is called without it."""

    if TYPE_CHECKING:

        @property
        def replication(self) -> Replication: ...

    @property
    def moves(self) -> Moves:
        """By default a task brings nothing."""
        return Moves()

    @property
    def judged_tables(self) -> Sequence[TableName]:
        """Those that may be what the task has failed for."""
        return self.moves.tables

    def get_openlineage_facets_on_start(self) -> Lineage:
        return self._lineage("started", self.moves.tables)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Lineage:
        del task_instance
        return self._lineage("succeeded", self.moves.tables)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Lineage:
        del task_instance
        return self._lineage("failed", self.judged_tables)

    def _lineage(self, stage: Stage, tables: Collection[TableName]) -> Lineage:
        from airflow_provider_pgetl.openlineage.facets import lineage

        replication = self.replication
        return lineage(replication, self.moves, stage, _known(replication, tables) if tables else {})


def _known(replication: Replication, tables: Collection[TableName]) -> Mapping[TableName, TableDescription]:
    """By the pipeline's state. Where that cannot be read, what is declared is told all the same."""
    from airflow_provider_pgetl.engine.state.survey import describe

    try:
        uri = value(STATE, replication.connections.state)
        return describe(uri, replication.spec.id, tables, _PATIENCE_SECONDS)
    except PgetlError as error:
        log.info("OpenLineage is told what is declared, and no more: %s", error.message)
        return {}
