"""The transformation of a table's rows: as columns of texts, and as the messages of a stream.

Messages are rewritten as a whole, before they are parsed for a destination. So the rows that destinations get look as
if the source had sent them: a destination, or a later step, cannot come across a value before its transformation.

* Old and new tuples are transformed alike, so that keys and whole old rows still identify rows.
* A value that the source did not send again stays absent.
* Of an old tuple that holds only the key, only key columns are transformed: the others are null whatever they were.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.changes.batch import WireRows
from airflow_provider_pgetl.engine.changes.tuples import (
    ABSENT,
    BINARY,
    MISSING,
    NULL,
    TEXT,
    Bytes,
    Ints,
    Tuples,
    write_int32,
)
from airflow_provider_pgetl.engine.config.spec import PipelineSpec
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import Column, TableName, TableSchema
from airflow_provider_pgetl.engine.transform.columns import ColumnTransform
from airflow_provider_pgetl.engine.transform.keyed import Keys
from airflow_provider_pgetl.engine.transform.rules import TableRules, expect_like_before, fingerprint, rules_of

_WHOLE_OLD = ord("O")
_BEFORE_LENGTH = 5  # the kind of a value and its length stand before it
SEND_ALL = "`ALTER TABLE … REPLICA IDENTITY FULL` at the source has it sent; then copy the table again."


class TableTransform:
    """Transforms the rows of one table under one version of its schema."""

    def __init__(self, rules: TableRules, keys: Keys) -> None:
        self._schema = rules.schema
        self._columns = [ColumnTransform(one, None if one.key is None else keys[one.key]) for one in rules.columns]

    @property
    def uses(self) -> Mapping[str, str]:
        """The transformers, by the columns."""
        return {one.rule.column.name: one.rule.use for one in self._columns}

    def changes(self, names: Collection[str]) -> bool:
        """Whether one of these columns is transformed."""
        return any(one.rule.column.name in names for one in self._columns)

    def arrays(self, arrays: Sequence[pa.Array]) -> list[pa.Array]:
        """Returns the columns of copied rows, which are texts in Arrow binary, in the same form."""
        by_name = dict(zip(self._schema.names, arrays, strict=True))
        made = list(arrays)
        for one in self._columns:
            made[one.rule.index] = one.of(arrays[one.rule.index], by_name.__getitem__).cast(pa.binary())
        return made

    def version(self, known: Collection[int]) -> TableSchema:
        """Returns the schema as it may be stored: the value that existing rows have in a column that was added is
        transformed like any other. In the columns with the numbers `known` it is already."""
        columns = (column if column.number in known else self._added(column) for column in self._schema.columns)
        return replace(self._schema, columns=tuple(columns))

    def _added(self, column: Column) -> Column:
        one = next((each for each in self._columns if each.rule.column.name == column.name), None)
        if one is None or (column.missing is None and not one.fills_null):
            return column
        if one.rule.transformer.reads:
            message = f"Column {column.name} of {self._schema.table} was added, and its rule reads other columns."
            remedy = f"Copy the table again: `pgetl reset FILE {self._schema.table}`."
            raise PgetlError(ErrorKind.TRANSFORM, message, remedy=remedy, table=str(self._schema.table))
        text = None if column.missing is None else column.missing.encode()
        (made,) = one.of(pa.array([text], pa.large_binary()), _no_others).to_pylist()
        return replace(column, missing=None if made is None else made.decode())

    def rows(self, rows: WireRows) -> WireRows:
        """Returns the same changes with transformed values."""
        sides = [_Side(tuples, self._reached(rows, tuples)) for tuples in rows.sent]
        fields = [field for one in self._columns for field in self._fields(one, sides, rows)]
        return _rewritten(rows, sorted(fields, key=lambda field: (field.side, field.column)))

    def _reached(self, rows: WireRows, tuples: Tuples) -> NDArray[np.bool_]:
        """Returns where a NULL is a value: in new rows, and in old rows that are whole."""
        if tuples is rows.sent[1]:
            return rows.has_new
        return np.asarray(rows.has_old & (rows.markers == _WHOLE_OLD))

    def _fields(self, one: ColumnTransform, sides: Sequence[_Side], rows: WireRows) -> list[_Field]:
        """Transforms the column's old and new values together. A new value that only the old row has sent is not among
        the new ones: it is filled in later, from the transformed old one."""
        index = one.rule.index
        at = [side.transformable(index, one.fills_null) for side in sides]
        for side, there in zip(sides, at, strict=True):
            self._expect_texts(side.tuples.kinds[index, there])
        values = pa.concat_arrays([side.values(index, there) for side, there in zip(sides, at, strict=True)])
        if not len(values):
            return []
        made = one.of(values, lambda name: self._others(name, sides, at, rows))
        split = len(at[0])
        return [_Field(0, index, at[0], made.slice(0, split)), _Field(1, index, at[1], made.slice(split))]

    def _expect_texts(self, kinds: Bytes) -> None:
        if bool((kinds == BINARY).any()):
            message = f"A change of {self._schema.table} has come in binary, and is not transformed."
            raise PgetlError(ErrorKind.INTERNAL, message, table=str(self._schema.table))

    def _others(self, name: str, sides: Sequence[_Side], at: Sequence[Ints], rows: WireRows) -> pa.Array:
        """Returns the values of another column in the same rows."""
        index = self._schema.names.index(name)
        known = [_Side(rows.old, sides[0].reached), _Side(rows.new, sides[1].reached)]
        for side, there in zip(known, at, strict=True):
            if bool((side.tuples.kinds[index, there] == ABSENT).any()):
                message = (
                    f"Column {name} of {self._schema.table}, which a transformer reads, was not sent with a change: "
                    "the source does not send large values that an UPDATE left unchanged."
                )
                raise PgetlError(ErrorKind.TRANSFORM, message, remedy=SEND_ALL, table=str(self._schema.table))
        return pa.concat_arrays([side.values(index, there) for side, there in zip(known, at, strict=True)])


def _no_others(name: str) -> pa.Array:
    raise KeyError(name)


@dataclass(frozen=True, slots=True)
class _Side:
    """The old or the new tuples. `reached`: where a NULL is a value of the row."""

    tuples: Tuples
    reached: NDArray[np.bool_]

    def transformable(self, column: int, nulls_too: bool) -> Ints:
        """Returns the changes in which this column is to be transformed."""
        kinds = self.tuples.kinds[column]
        there = (kinds != NULL) & (kinds != ABSENT) & (kinds != MISSING)
        if nulls_too:
            there |= (kinds == NULL) & self.reached
        return np.flatnonzero(there)

    def values(self, column: int, changes: Ints) -> pa.Array:
        return self.tuples.columns([column]).take(changes).column_array(0)


# -- Rewriting messages. -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    """The values of one column on one side (0 old, 1 new) that take the place of those sent in these changes."""

    side: int
    column: int
    changes: Ints
    values: pa.Array


def _rewritten(rows: WireRows, fields: Sequence[_Field]) -> WireRows:
    """Returns the messages with these fields in place of theirs. `fields` are in the order in which they stand in a
    message.

    The buffer is cut into pieces: for each message what stands before a field, the field, and so on, and what is behind
    the last one. The new buffer consists of the same pieces in the same order, but in place of a field there are the
    head and the value of the new one. So it is made by a single `take`.
    """
    cuts = [rows.starts]
    pieces: list[pa.Array] = []
    order: list[Ints] = []
    count, sent = len(rows), _Pieces()
    for number, field in enumerate(fields):
        begin, end = _span(rows.sent[field.side], field)
        before = cuts[-1].copy()
        after = before.copy()
        before[field.changes], after[field.changes] = begin, end
        cuts += [before, after]
        order.append(sent.of(2 * number, len(fields), count))
        for made in (_heads(field.values), field.values):
            pieces.append(made)
            order.append(sent.new(field.changes, count))
    cuts.append(np.append(rows.starts[1:], len(rows.buffer)))
    order.append(sent.of(2 * len(fields), len(fields), count))
    return _joined(rows, _cut(rows.buffer, cuts), pieces, np.stack(order, axis=1))


class _Pieces:
    """Numbers of pieces: an empty one, those of the old buffer, and then the new ones in the order in which they are
    added. With `fields` fields, each message of the old buffer has ``2 * fields + 1`` pieces."""

    def __init__(self) -> None:
        self._added = 0

    def of(self, place: int, fields: int, count: int) -> Ints:
        """Returns the numbers of this piece of every old message."""
        return 1 + place + (2 * fields + 1) * np.arange(count)

    def new(self, changes: Ints, count: int) -> Ints:
        """Returns the numbers of the pieces that are added for these changes, negative until it is known how many
        others are before; 0, the empty piece, for other changes."""
        found = np.zeros(count, dtype=np.int64)
        found[changes] = -1 - np.arange(self._added, self._added + len(changes))
        self._added += len(changes)
        return found


def _cut(buffer: Bytes, cuts: Sequence[Ints]) -> pa.Array:
    """Returns the pieces of the buffer between the cuts, which every message has; an empty one before them."""
    edges = np.stack(cuts[:-1], axis=1).ravel()
    offsets = np.concatenate([[0], edges, cuts[-1][-1:]]).astype(np.int64)
    return pa.Array.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
    )


def _joined(rows: WireRows, old: pa.Array, new: Sequence[pa.Array], order: Ints) -> WireRows:
    """Returns the messages that consist of the pieces in this order."""
    order = np.where(order < 0, len(old) - 1 - order, order)
    made = pa.concat_arrays([old, *new]).take(pa.array(order.ravel()))
    offsets = np.frombuffer(made.buffers()[1], dtype=np.int64)[: len(made) + 1]
    data = np.frombuffer(made.buffers()[2] or b"", dtype=np.uint8)[: int(offsets[-1])]
    return replace(rows, buffer=data, starts=offsets[: -1 : order.shape[1]].copy())


def _span(tuples: Tuples, field: _Field) -> tuple[Ints, Ints]:
    """Returns where the fields begin and end in the old buffer."""
    begin = tuples.offsets[field.column, field.changes].astype(np.int64) - _BEFORE_LENGTH
    had = tuples.lengths[field.column, field.changes].astype(np.int64)
    is_null = tuples.kinds[field.column, field.changes] == NULL
    return begin, begin + np.where(is_null, 1, _BEFORE_LENGTH + had)


def _heads(values: pa.Array) -> pa.Array:
    """Returns what stands before each value: its kind, and its length if it is not null."""
    lengths = np.asarray(pc.binary_length(values).fill_null(-1)).astype(np.int64)
    valued = lengths >= 0
    sizes = np.where(valued, _BEFORE_LENGTH, 1)
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    data = np.empty(int(ends[-1]), dtype=np.uint8)
    data[ends[:-1]] = np.where(valued, TEXT, NULL)
    write_int32(data, ends[:-1][valued] + 1, lengths[valued])
    return pa.Array.from_buffers(pa.large_binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(data)])


# -- The transformations of a pipeline. --------------------------------------------------------------------------------


_REMEMBERED = 1000


class Transforms:
    """The transformations of all tables of a pipeline. For any thread."""

    def __init__(self, spec: PipelineSpec, keys: Keys) -> None:
        self.spec = spec
        self._keys = keys
        self._known: dict[tuple[TableName, int], tuple[TableSchema, TableTransform | None]] = {}
        self._fingerprints: dict[TableName, str] = {}

    @classmethod
    def resolved(cls, spec: PipelineSpec, environment: Mapping[str, str]) -> Transforms | None:
        """Returns None for a pipeline without rules, whose values nothing touches."""
        return cls(spec, Keys.resolved(spec.transform_keys, environment)) if spec.transforms else None

    def of(self, table: TableName, schema: TableSchema) -> TableTransform | None:
        """Returns the transformation of the source's table under this schema; None if it is not transformed. Raises
        what is wrong with its rules."""
        known = self._known.get((table, id(schema)))
        if known is None or known[0] is not schema:
            rules = rules_of(self.spec, table, schema)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            made = None if rules is None else TableTransform(rules, self._keys)
            known = self._known[table, id(schema)] = schema, made
        return known[1]

    def altered(self, table: TableName, before: TableSchema, after: TableSchema) -> TableSchema:
        """Returns the version `after` of the table's schema as it may be stored. Raises why rows cannot go on under it:
        a rule has ceased to fit, or what was written of a column would be transformed otherwise now."""
        transform = self.of(table, after)
        expect_like_before(self.spec, table, before, after)
        return after if transform is None else transform.version({column.number for column in before.columns})

    def fingerprint(self, table: TableName) -> str:
        if table not in self._fingerprints:
            self._fingerprints[table] = fingerprint(self.spec, table, self._keys)
        return self._fingerprints[table]


def fingerprint_of(transforms: Transforms | None, table: TableName) -> str:
    return "" if transforms is None else transforms.fingerprint(table)


def rules_changed(table: TableName) -> PgetlError:
    message = f"The rules that transform {table}, or their keys, are others than when it was copied."
    remedy = "`pgetl run FILE`, or the task `prepare`, has it copied anew."
    return PgetlError(ErrorKind.TRANSFORM, message, remedy=remedy, table=str(table))
