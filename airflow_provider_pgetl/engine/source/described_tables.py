"""What the event trigger describes of an altered table, in the terms in which the catalog is read otherwise.

A description is exact at its place in the stream. It does not say what a publication sends of the table: a column that
is added is sent unless the table has a column list or the column is computed, and the columns of a chosen index are
those that they were. Where that is not so, the RELATION message before the next row differs, and the catalog decides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_pgetl.engine.model.tables import Column, Identity, PgType, TableSchema
from airflow_provider_pgetl.engine.source.alterations import SAME_FILE, HeldRows, Missing, PresentTable
from airflow_provider_pgetl.engine.source.ddl_trigger import DescribedColumn, DescribedTable
from airflow_provider_pgetl.engine.source.drift import ColumnForm, PublishedDescription

_IDENTITIES: Mapping[str, Identity] = {"d": "default", "i": "index", "f": "full", "n": "nothing"}
_WRITTEN_ANEW = -1  # no file has this number


@dataclass(frozen=True, slots=True)
class Description:
    """A followed table after a command: `table`, its partitions, and which of them the transaction has written anew so
    far, each with whether that has only cast values."""

    table: DescribedTable
    leaves: Sequence[DescribedTable]
    rewritten: Mapping[int, bool]

    @property
    def is_rewritten(self) -> bool:
        return bool(self._rewrites)

    @property
    def casts(self) -> bool:
        """Whether rows that were written anew have the values that they had."""
        return all(self._rewrites)

    @property
    def _rewrites(self) -> list[bool]:
        return [self.rewritten[one.oid] for one in (self.table, *self.leaves) if one.oid in self.rewritten]

    @property
    def nullable(self) -> set[str]:
        return {column.name for column in self.table.columns if not column.not_null}

    def types(self, schema: TableSchema) -> set[int]:
        """Returns the OIDs of types that the schema does not have."""
        known = {column.type.oid for column in schema.columns}
        return {column.type for column in self.table.columns} - known

    def present(self, schema: TableSchema, types: Mapping[int, PgType]) -> PresentTable | None:
        """Returns the table as it is after the command; None if a type does not exist any more."""
        known = {column.type.oid: column.type for column in schema.columns} | dict(types)
        if any(column.type not in known for column in self.table.columns):
            return None
        columns = {one.name: _column(one, known[one.type]) for one in self.table.columns}
        count = max(column.number for column in (*columns.values(), *schema.columns))
        files, holders = dict(schema.files), self.leaves or (self.table,)
        leaves = {
            one.oid: HeldRows(
                _WRITTEN_ANEW if one.oid in self.rewritten else files.get(one.oid, SAME_FILE),
                {column.name: Missing(column.has_missing, column.missing) for column in one.columns},
            )
            for one in holders
            if one.kind == "r"
        }
        return PresentTable(columns, count, leaves, self.casts)

    def files(self, schema: TableSchema) -> tuple[tuple[int, int], ...]:
        """Returns the files that hold the rows after the command."""
        now = {one.oid: one.filenode for one in (self.table, *self.leaves) if one.oid in self.rewritten}
        return tuple((oid, now.get(oid) or file) for oid, file in schema.files)

    def published(self, schema: TableSchema, listed: Collection[str] | None) -> PublishedDescription:
        """Returns the table as it is sent. `listed`: the column list, if there is one."""
        sent = {column.number for column in schema.columns}
        columns = {
            one.name: ColumnForm(one.type, one.modifier, one.attnum)
            for one in self.table.columns
            if one.attnum in sent or (listed is None and not one.generated)
        }
        names = {one.attnum: one.name for one in self.table.columns}
        key = frozenset(names[number] for number in self.table.key)
        identity = _IDENTITIES[self.table.identity]
        if identity == "index":
            numbers = {column.number for column in schema.columns if column.name in schema.key}
            key = frozenset(names[number] for number in numbers if number in names)
        known = key if columns.keys() >= key else frozenset[str]()
        told = frozenset(columns) if identity == "full" else known
        return PublishedDescription(columns, identity, frozenset() if identity == "nothing" else told, known)


def _column(one: DescribedColumn, kind: PgType) -> Column:
    return Column(
        one.name,
        kind,
        one.type_name,
        one.modifier,
        one.not_null,
        bool(one.generated),
        "a" if one.identity == "a" else "d" if one.identity == "d" else "",
        one.comment,
        one.attnum,
    )
