"""The facets that describe to OpenLineage the tables that are copied and streamed. Imported only where OpenLineage is
installed.

The columns of a table are known when a copy of it has begun, and before that where the declaration names them. Every
column is replicated unchanged; a row filter is reported as an indirect dependency of the whole replica. Columns that
the source generates and does not send have no lineage: where the destination has them, it computes them by itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import attr
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import Dataset, InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    RunFacet,
    column_lineage_dataset,
    dataset_version_dataset,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    schema_dataset,
    sql_job,
    storage_dataset,
    symlinks_dataset,
)
from openlineage.client.utils import RedactMixin

from airflow_provider_pgetl.declarations import Replication
from airflow_provider_pgetl.engine.config.spec import TableSpec
from airflow_provider_pgetl.engine.model.phases import phase_name
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema, quote_identifier
from airflow_provider_pgetl.engine.monitoring.snapshots import TableDescription
from airflow_provider_pgetl.errored_tables import errored_table
from airflow_provider_pgetl.openlineage.datasets import DatasetName, Datasets, replica
from airflow_provider_pgetl.openlineage.tasks import Moves, Stage

_WORDS = re.compile(r"""'(?:[^']|'')*'|"((?:[^"]|"")+)"|([A-Za-z_\x80-\U0010ffff][\w$]*)""")

# The limit for all tables of one task together. 4,000 columns make an event of 1.7 MB, and brokers usually accept
# messages of 1 MB; and the listener gives up after ten seconds, in which a busy machine writes 10,000.
MOST_COLUMNS = 2000

Field = schema_dataset.SchemaDatasetFacetFields
Lineage = OperatorLineage[Dataset, RunFacet | JobFacet]


@attr.define
class PgetlTable(RedactMixin):
    """The state of a table of the pipeline. `position` is a log sequence number of the source: every change before it
    is in the destination. `reason`, `remedy` and `retryAt` (ISO 8601) are those of a table that is Errored."""

    table: str
    phase: str
    generation: int
    position: str | None = None
    reason: str | None = None
    remedy: str | None = None
    retryAt: str | None = None  # noqa: N815 - keys of facets are in camel case


@attr.define
class PgetlRunFacet(RunFacet):
    """The pipeline that a task belongs to, and the state of those of its tables that the task concerns, at the time of
    the event."""

    pipeline: str
    tables: list[PgetlTable] = attr.field(factory=list)


def lineage(
    replication: Replication, moves: Moves, stage: Stage, known: Mapping[TableName, TableDescription]
) -> Lineage:
    """Returns what is reported of a task. `known` is what the pipeline's state has of its tables; it may be empty."""
    datasets = Datasets(replication)
    moved = [_Moved(replication, datasets, table, known.get(table)) for table in moves.tables]
    if len(moved) > 1 and sum(len(one.columns) for one in moved) > MOST_COLUMNS:
        moved = [replace(one, names_columns=False) for one in moved]
    has_ended, has_copied = stage != "started", stage == "succeeded" and moves.has_copied
    told = [_told(table, known[table]) for table in sorted(known)]
    queries = "; ".join(one.query for one in moved)
    return OperatorLineage(
        inputs=[one.input(has_ended=has_ended, has_copied=has_copied) for one in moved],
        outputs=[one.output(has_copied=has_copied) for one in moved],
        run_facets={"pgetl": PgetlRunFacet(replication.spec.id, told)},
        job_facets={"sql": sql_job.SQLJobFacet(queries, dialect="postgres")} if moves.copies else {},
    )


@dataclass(frozen=True, slots=True)
class _Moved:
    """One table that a task replicates. `names_columns`: False where there are too many of them."""

    replication: Replication
    datasets: Datasets
    table: TableName
    known: TableDescription | None
    names_columns: bool = True

    def input(self, *, has_ended: bool, has_copied: bool) -> InputDataset:
        """Returns the table in the source. The schema facet is set only where all columns are known: other jobs may
        read columns that this pipeline leaves out."""
        namespace, name = self.datasets.source(self.table)
        facets: dict[str, DatasetFacet] = {}
        if self.names_columns and self._schema is not None and not self._spec.columns:
            facets["schema"] = schema_dataset.SchemaDatasetFacet(list(_source_fields(self._schema)))
        if has_ended and self.known is not None and self.known.position is not None:
            facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(self.known.position))
        dataset = InputDataset(namespace, name, facets=facets)
        if has_copied and self.known is not None:
            statistics = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
                rowCount=self.known.rows, size=self.known.bytes
            )
            dataset.inputFacets = {"inputStatistics": statistics}
        return dataset

    def output(self, *, has_copied: bool) -> OutputDataset:
        namespace, name = self.datasets.replica(self.table)
        dataset = OutputDataset(namespace, name, facets=self._output_facets(DatasetName(namespace, name)))
        if has_copied and self.known is not None:
            statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=self.known.rows)
            dataset.outputFacets = {"outputStatistics": statistics}
        return dataset

    @property
    def query(self) -> str:
        """What the copy reads, as one statement; in fact it is read in ranges."""
        columns = ", ".join(map(quote_identifier, self.columns)) or "*"
        where = "" if self._spec.where is None else f" WHERE {self._spec.where}"
        return f"SELECT {columns} FROM {self.table.sql}{where}"

    @property
    def columns(self) -> tuple[str, ...]:
        return self._spec.columns if self._schema is None else self._schema.names

    @property
    def _spec(self) -> TableSpec:
        return self.replication.declared(self.table) or TableSpec(str(self.table))

    @property
    def _schema(self) -> TableSchema | None:
        """The table's schema; None where it is not known, or where other columns were copied than are declared now."""
        schema = None if self.known is None else self.known.schema
        declared = set(self._spec.columns)
        return schema if schema is not None and declared in (set(), set(schema.names)) else None

    def _output_facets(self, own: DatasetName) -> dict[str, DatasetFacet]:
        facets: dict[str, DatasetFacet] = {}
        if self.names_columns and self.columns:
            facets["columnLineage"] = self._column_lineage()
            facets["schema"] = schema_dataset.SchemaDatasetFacet(self._destination_fields())
        known_as = replica(self.replication.spec.id, self.table)
        if own != known_as:
            other = symlinks_dataset.Identifier(known_as.namespace, known_as.name, type="TABLE")
            facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet([other])
        if self.replication.spec.destination.type == "delta":
            facets["storage"] = storage_dataset.StorageDatasetFacet(storageLayer="delta", fileFormat="parquet")
        return facets

    def _column_lineage(self) -> column_lineage_dataset.ColumnLineageDatasetFacet:
        fields = {
            column: column_lineage_dataset.Fields(inputs) for column in self.columns if (inputs := self._inputs(column))
        }
        where = self._spec.where or ""
        filtering = [self._depends_on(name, "INDIRECT", "FILTER") for name in names_in(where, self.columns)]
        return column_lineage_dataset.ColumnLineageDatasetFacet(fields, filtering)

    def _inputs(self, column: str) -> list[column_lineage_dataset.InputField]:
        """Returns the columns of the source that a column of the destination depends on; none where every row has the
        same value."""
        rule = self.replication.spec.rule_for(self.table, column)
        if rule is None or rule.use == "keep":
            return [self._depends_on(column, "DIRECT", "IDENTITY")]
        if rule.use in ("null", "constant"):
            return []
        read = rule.transformer.reads if rule.use in ("template", "boolean") else (column, *rule.transformer.reads)
        return [self._depends_on(name, "DIRECT", "TRANSFORMATION", masking=True) for name in read]

    def _depends_on(
        self, column: str, kind: str, subtype: str, *, masking: bool = False
    ) -> column_lineage_dataset.InputField:
        namespace, name = self.datasets.source(self.table)
        transformation = column_lineage_dataset.Transformation(kind, subtype, masking=masking)
        return column_lineage_dataset.InputField(namespace, name, column, [transformation])

    def _destination_fields(self) -> list[Field]:
        """Returns the columns in the destination, with types where they are known."""
        spec = self.replication.spec.destination
        described = None if self._schema is None else spec.kind.columns(self._schema, spec.options)
        return [Field(name) for name in self.columns] if described is None else [Field(*one) for one in described]


def names_in(condition: str, names: Collection[str]) -> list[str]:
    """Returns those of the names that occur in an SQL condition as identifiers: quoted, or unquoted in any letter case.
    A function of the same name as a column counts as one."""
    words = _WORDS.finditer(condition)
    found = {word[1].replace('""', '"') if word[1] else (word[2] or "").lower() for word in words}
    return [name for name in names if name in found]


def _source_fields(schema: TableSchema) -> Iterable[Field]:
    columns = [*schema.columns, *(one.column for one in schema.generated)]
    for column in sorted(columns, key=lambda one: one.number):
        yield Field(column.name, column.sql_type, column.comment)


def _told(table: TableName, known: TableDescription) -> PgetlTable:
    phase = known.state.phase
    position = None if known.position is None else str(known.position)
    told = PgetlTable(str(table), phase_name(phase), known.state.generation, position)
    errored = errored_table(table, known.state, 0.0)
    if errored is not None:
        told.reason, told.remedy = errored.reason, errored.what_to_do
        if errored.retry_at is not None:
            told.retryAt = datetime.fromtimestamp(errored.retry_at, UTC).isoformat()
    return told
