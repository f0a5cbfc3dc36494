"""The methods of a pipeline's tasks that OpenLineage's listener calls.

`data_sync` reports copies, `apply` the stream, `merge` merges: with tables, columns, and the figures of a copy that was
made. All other tasks report no table, except when they fail because one is Errored: then its reason and remedy are
reported, as they are in the error's message as well, which the listener adds.

`apply` is deferred for as long as it streams, and is not queried meanwhile: its tables are reported when it starts (and
again when it is resumed), and once more when it ends, rotates, or fails.
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
    from airflow_provider_pgetl.engine.monitoring.snapshots import TableDescription
    from airflow_provider_pgetl.openlineage.facets import Lineage

# The listener gives up after ten seconds, and then reports nothing.
_PATIENCE_SECONDS = 3

Stage = Literal["started", "succeeded", "failed"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Moves:
    """The tables whose data a task brings to the destination: as `copies`, or as changes. `has_copied`: the task has
    made these copies, or waited for them; False where they had been made before."""

    tables: Sequence[TableName] = ()
    copies: bool = False
    has_copied: bool = False


class TellsOpenLineage:
    """A mixin for operators with a `replication`. Its methods `get_openlineage_facets_…` are called only where
    OpenLineage is installed."""

    if TYPE_CHECKING:

        @property
        def replication(self) -> Replication: ...

    @property
    def moves(self) -> Moves:
        """What the task replicates; by default nothing."""
        return Moves()

    @property
    def judged_tables(self) -> Sequence[TableName]:
        """The tables whose errors may have failed the task."""
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
    """Returns what the pipeline's state has of the tables; nothing where it cannot be read: then only the declaration
    is reported."""
    from airflow_provider_pgetl.engine.monitoring.snapshots import describe

    try:
        uri = value(STATE, replication.connections.state)
        return describe(uri, replication.spec.id, tables, _PATIENCE_SECONDS)
    except PgetlError as error:
        log.info("OpenLineage is told what is declared, and no more: %s", error.message)
        return {}
