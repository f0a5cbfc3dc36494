"""A few changes, one statement each, in the source's order: nothing is staged, nothing folded.

What the source did row by row is right in that order, so a handful of changes costs one round trip and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_pgetl.engine.changes.rows import DELETE, INSERT, WireRows
from airflow_provider_pgetl.engine.changes.tuples import ABSENT, BINARY, TEXT, Tuples
from airflow_provider_pgetl.engine.destinations.postgres.session import Statement
from airflow_provider_pgetl.engine.destinations.postgres.shape import Field, Form, Shape
from airflow_provider_pgetl.engine.destinations.protocol import Misses

AT_MOST = 32
_FORMS: dict[int, Form] = {TEXT: "text", BINARY: "binary"}


def can_take(shape: Shape, rows: WireRows) -> bool:
    """No UPDATE may set an identity-always column; where one could have to, rows are rewritten in bulk."""
    return len(rows) <= AT_MOST and not (shape.always and bool((rows.has_old & rows.has_new).any()))


def statements(shape: Shape, rows: WireRows) -> Iterator[tuple[Statement, Misses | None]]:
    """The changes as statements, each with what it means if it touches no row; None: that must not be."""
    for row in range(len(rows)):
        op = int(rows.ops[row])
        if op == INSERT:
            yield _insert(shape, rows.new, row), None
        elif op == DELETE:
            yield _delete(shape, rows.old, row), Misses(deletes=1)
        else:
            yield from _update(shape, rows, row)


class _Values:
    """Parameters as they are collected."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.formats: list[int] = []

    def add(self, field: Field, tuples: Tuples, row: int) -> str:
        """The parameter as SQL."""
        kind = int(tuples.kinds[field.index, row])
        self.values.append(tuples.value(field.index, row))
        self.formats.append(1 if kind == BINARY else 0)
        return field.parameter(len(self.values), _FORMS.get(kind, "null"))

    def statement(self, shape: Shape, sql: str) -> Statement:
        return Statement(sql, self.values, self.formats, shape.table)


def _insert(shape: Shape, new: Tuples, row: int) -> Statement:
    given = _Values()
    values = ", ".join([given.add(field, new, row) for field in shape.fields])
    sql = f"insert into {shape.sql} ({shape.columns_sql}) overriding system value values ({values})"
    return given.statement(shape, sql)


def _delete(shape: Shape, old: Tuples, row: int) -> Statement:
    given = _Values()
    return given.statement(shape, f"delete from {shape.sql} t where {_known_by(shape, given, old, row)}")


def _update(shape: Shape, rows: WireRows, row: int) -> Iterator[tuple[Statement, Misses]]:
    given = _Values()
    sets = ", ".join([f"{f.sql} = {given.add(f, rows.new, row)}" for f in _touched(shape, rows, row)])
    if sets:
        known = rows.old if rows.has_old[row] else rows.new
        sql = f"update {shape.sql} t set {sets} where {_known_by(shape, given, known, row)}"
        yield given.statement(shape, sql), Misses(updates=1)


def _touched(shape: Shape, rows: WireRows, row: int) -> Sequence[Field]:
    """The fields that an update sets: values that came, and the key where it moves."""
    present = [f for f in shape.values if rows.new.kinds[f.index, row] != ABSENT and f.destination.identity != "a"]
    if not rows.has_old[row]:
        return present
    moved = [f for f in shape.key if rows.old.value(f.index, row) != rows.new.value(f.index, row)]
    return [*present, *(f for f in moved if rows.new.kinds[f.index, row] != ABSENT)]


def _known_by(shape: Shape, given: _Values, old: Tuples, row: int) -> str:
    if shape.key:
        return " and ".join([f.equal(f"t.{f.sql}", given.add(f, old, row)) for f in shape.key])
    stored = ", ".join([f"o.{f.sql}" for f in shape.fields])
    wanted = ", ".join([f"({given.add(f, old, row)})::{f.destination.sized_type}" for f in shape.fields])
    matching = f"row({stored})::text = row({wanted})::text"
    return f"({shape.locator}) = (select {shape.locator} from {shape.sql} o where {matching} limit 1)"
