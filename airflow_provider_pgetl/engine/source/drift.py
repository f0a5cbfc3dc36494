"""What became of a table's schema since it was copied. Pure.

A table is compared with two descriptions. RELATION, in the stream, is exact for the rows behind it, but says neither
which attribute a column is (one that was dropped and added again looks the same) nor what the primary key is under
replica identity full. The catalog says these, of the present: a table may be found to have drifted before the changes
that were made earlier have been applied. Both ways the table is copied again.

An ALTER that writes all rows anew (ALTER TYPE … USING) sends none of them: only the catalog tells that files were
exchanged and that a column was altered.

A row of a partition is written to the WAL by the partition's own replica identity, and sent under the root's name.
What the partition tells must include the root's key: else its updates and deletes would hit nothing, or another row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_provider_pgetl.engine.tables import Identity, PgType, TableName, TableSchema

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """A column as descriptions are compared; `number` is 0 where the description does not say it."""

    type: int
    modifier: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class Description:
    """A published table. `told` are the columns that the replica identity covers. `key` is None where it is not
    known."""

    columns: Mapping[str, ColumnForm]
    identity: Identity
    told: Set[str]
    key: Set[str] | None = None


@dataclass(frozen=True, slots=True)
class Storage:
    """The number of the file of each leaf, by its OID, and the transaction that last altered each column."""

    files: Mapping[int, int]
    altered: Mapping[str, int]


def storage(schema: TableSchema) -> Storage:
    return Storage(dict(schema.files), {one.name: one.altered for one in schema.columns})


def rewritten(before: Storage, now: Storage) -> bool:
    """Whether values may have been changed by an ALTER, of which the stream says nothing. It writes the rows to new
    files, as TRUNCATE and VACUUM FULL do too, but those alter no column; and what alters no value keeps the files."""
    return _moved(before.files, now.files) and _moved(before.altered, now.altered)


def _moved(before: Mapping[Any, int], now: Mapping[Any, int]) -> bool:
    return any(value and now.get(one, value) != value for one, value in before.items())


def described(schema: TableSchema) -> Description:
    columns = {one.name: ColumnForm(one.type.oid, one.modifier, one.number) for one in schema.columns}
    told = schema.names if schema.identity == "full" else schema.key
    return Description(columns, schema.identity, frozenset(told), frozenset(schema.key))


def differences(schema: TableSchema, now: Description) -> list[str]:
    """In words, what is not any more as in the version that was copied."""
    before = described(schema)
    found = list(_of_columns(before.columns, now.columns))
    # Of a table whose updates and deletes cannot be told only inserts are published: it may have any identity.
    if schema.key or schema.identity == "full":
        found += _of_identity(before, now)
    return found


def redefined(before: PgType, now: PgType) -> str | None:
    """In words, how a type was altered so that all values of it are others. No row is sent then, and no RELATION."""
    labels = _numbered(now, now.labels, before)
    if renamed := [
        label for label, number in _numbered(before, before.labels, before) if (label, number) not in labels
    ]:
        return f"the label {renamed[0]} of the type {before.name} was renamed"
    if _attributes(before, before) != _attributes(now, before):
        return f"the attributes of the type {before.name} are others"
    parts = [(one, other) for (_, one), (_, other) in zip(before.fields, now.fields, strict=True)]
    if before.inner is not None and now.inner is not None and before.inner.oid == now.inner.oid:
        parts.append((before.inner, now.inner))
    return next((why for one, other in parts if (why := redefined(one, other))), None)


def _attributes(one: PgType, before: PgType) -> list[tuple[tuple[str, int], int]]:
    return _numbered(one, [(name, field.oid) for name, field in one.fields], before)


def _numbered(one: PgType, parts: Sequence[T], before: PgType) -> list[tuple[T, int]]:
    """Its labels or attributes with their numbers, where those of `before` are known."""
    return list(zip(parts, one.numbers if before.numbers else [0] * len(parts), strict=False))


def redefined_columns(schema: TableSchema, now: Mapping[str, int]) -> list[str]:
    """In words, the columns that the source does not send and computes by another expression than it did. `now`: the
    OID under which each column's expression is stored, which an expression that takes its place does not have."""
    return [
        f"{one.column.name} is not computed as it was"
        for one in schema.generated
        if one.definition and now.get(one.column.name) != one.definition
    ]


def tells_key(identity: Identity, told: Collection[str], schema: TableSchema) -> bool:
    """Whether a partition's WAL says which rows of the root its updates and deletes are about. One that tells nothing
    has none: they fail at the source."""
    if identity == "full" or not told:
        return True
    if not schema.key:
        return schema.identity != "full"
    return set(schema.key) <= set(told)


def alike(leaf: TableName) -> str:
    """What to do about a partition with another replica identity."""
    return f"`ALTER TABLE {leaf.sql} REPLICA IDENTITY FULL` at the source"


def _of_columns(before: Mapping[str, ColumnForm], now: Mapping[str, ColumnForm]) -> Iterator[str]:
    yield from (f"{name} was added" for name in now if name not in before)
    yield from (f"{name} was dropped" for name in before if name not in now)
    for name in now:
        if name in before and (difference := _of_column(before[name], now[name])):
            yield f"{name} {difference}"
    if now.keys() == before.keys() and list(now) != list(before):
        yield "their order differs"


def _of_column(before: ColumnForm, now: ColumnForm) -> str | None:
    if before.type != now.type:
        return "has another type"
    if before.modifier != now.modifier:
        return "has another length, precision or scale"
    if before.number and now.number and before.number != now.number:
        return "was dropped and added again"
    return None


def _of_identity(before: Description, now: Description) -> Iterator[str]:
    if now.identity != before.identity:
        yield f"its replica identity was {before.identity} and is {now.identity}"
    elif now.told != before.told:
        yield f"its replica identity was {_listed(before.told)} and is {_listed(now.told)}"
    elif now.key is not None and now.key != before.key:
        yield f"its primary key was {_listed(before.key or ())} and is {_listed(now.key)}"


def _listed(names: Collection[str]) -> str:
    return f"({', '.join(sorted(names))})"
