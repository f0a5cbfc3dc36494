"""The mapping from Postgres types to Delta types, and the conversion of values. Copies and changes use the same one.

| Postgres | Delta |
|---|---|
| boolean | boolean |
| smallint, integer, bigint, oid | short, integer, long, long |
| real, double precision | float, double |
| numeric(p,s), p up to 38 | decimal(p,s) |
| numeric without precision, or a longer one | string, or the decimal that `numeric` names |
| bytea | binary |
| date | date |
| timestamp | timestamp_ntz |
| timestamptz | timestamp |
| an array of any of these, or of what becomes a string | array of the element's type |
| all others: text, char, varchar, uuid, json, enums, time, interval, ranges, composites, inet, xml, … | string |

A string holds exactly the text that Postgres writes. The option `out_of_range` determines what happens to a value that
the Delta type cannot hold (an infinite date, NaN in a decimal, an array of several dimensions): with **error**, an
error names it; with **null**, it becomes null; with **text**, all columns that could have such a value are strings from
the start, which hold every value. A key column never becomes null: there **null** raises an error, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.schema import Field, Schema

from airflow_provider_pgetl.engine.changes import values
from airflow_provider_pgetl.engine.destinations.delta.options import DeltaOptions
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import Column, TableSchema

# -- Parsing of the text form of Postgres arrays: ``{1,NULL,"a \\"b\\""}``. --------------------------------------------
#
# A list can hold an array of one dimension that is counted from 1. It cannot hold arrays of several dimensions, or with
# bounds of their own (``[0:1]={7,8}``).

_ELEMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^,{}"\\]+(?:\\.[^,{}"\\]*)*)', re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


class NotOneDimension(Exception):
    """An array cannot be held as a list. The argument is its text."""


def split(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Returns offsets and elements: where each array begins among the elements (int32, one more than there are arrays),
    and the elements of all arrays one after another, as Arrow binary. An array that is NULL has no elements."""
    offsets = np.zeros(len(texts) + 1, dtype=np.int32)
    flat: list[bytes | None] = []
    for index, text in enumerate(texts.to_pylist()):
        if text is not None:
            flat.extend(elements(text))
        offsets[index + 1] = len(flat)
    return pa.array(offsets, pa.int32()), pa.array(flat, pa.large_binary())


def elements(text: bytes) -> list[bytes | None]:
    """Returns the elements of one array."""
    if text[:1] != b"{":
        raise NotOneDimension(text.decode(errors="replace"))
    inside = text[1:-1]
    if not inside:
        return []
    if b'"' not in inside and b"\\" not in inside and b"{" not in inside:
        return [None if part == b"NULL" else part for part in inside.split(b",")]
    return list(_quoted(text, inside))


def _quoted(text: bytes, inside: bytes) -> list[bytes | None]:
    found: list[bytes | None] = []
    at = 0
    while at <= len(inside):
        match = _ELEMENT.match(inside, at)
        if match is None:
            raise NotOneDimension(text.decode(errors="replace"))
        quoted, bare = match[1], match[2]
        if quoted is not None:
            found.append(_ESCAPED.sub(rb"\1", quoted))
        else:
            found.append(None if bare == b"NULL" else _ESCAPED.sub(rb"\1", bare))
        at = match.end() + 1
    return found


# -- Types. ------------------------------------------------------------------------------------------------------------

_NUMERIC = 1700
_BOX = 603  # the only type whose array elements are not separated by commas
_REMEDY = 'Set out_of_range to "null" or "text" in [destination], or change the value; then reset the table.'
_KEY_REMEDY = 'Set out_of_range to "text" in [destination], or change the value; then reset the table.'
_NEVER_HELD = [b"infinity", b"-infinity", b"NaN", b"Infinity", b"-Infinity"]


@dataclass(frozen=True)
class HeldColumn:
    """A column of the source, with the type in which the lake holds it."""

    column: Column
    is_key: bool
    options: DeltaOptions

    @property
    def name(self) -> str:
        return self.column.name

    @cached_property
    def element(self) -> Column | None:
        """For an array column that is held as a list, the elements as a column; otherwise None."""
        root = self.column.type.root
        if root.kind != "array" or root.inner is None or root.inner.root.oid == _BOX:
            return None
        if self.options.out_of_range == "text":
            return None
        modified = None if root.sql_type is None else root.sql_type.removesuffix("[]")
        return replace(self.column, type=root.inner if modified is None else replace(root.inner, sql_type=modified))

    @cached_property
    def type(self) -> pa.DataType:
        if self.element is not None:
            return pa.list_(pa.field("element", _scalar_type(self.element, self.options)))
        return _scalar_type(self.column, self.options)

    @property
    def may_be_null(self) -> bool:
        ranged = pa.types.is_temporal(self.type) or pa.types.is_decimal(self.type) or pa.types.is_list(self.type)
        return not self.column.not_null or (ranged and not self.is_key and self.options.out_of_range == "null")

    def decode(self, texts: pa.Array) -> pa.Array:
        """Converts texts, given as Arrow binary, to typed values; NULL becomes null."""
        if self.options.out_of_range != "null" or self.is_key:
            return self._decode(texts)
        try:
            return self._decode(texts)
        except PgetlError:
            unheld = pc.is_in(texts, value_set=pa.array(_NEVER_HELD, texts.type))
            return self._or_null(pc.if_else(unheld, pa.scalar(None, texts.type), texts))

    def _or_null(self, texts: pa.Array) -> pa.Array:
        """Converts texts, with null for those that cannot be converted. Halves the array until each of these stands
        alone; they are few."""
        try:
            return self._decode(texts)
        except PgetlError:
            if len(texts) == 1:
                return pa.nulls(1, self.type)
            half = len(texts) // 2
            return pa.concat_arrays([self._or_null(texts.slice(0, half)), self._or_null(texts.slice(half))])

    def _decode(self, texts: pa.Array) -> pa.Array:
        try:
            if self.element is not None:
                return self._decode_list(self.element, texts)
            return _decode_scalar(self.column, self.type, texts)
        except PgetlError as error:
            raise PgetlError(error.kind, error.message, remedy=_KEY_REMEDY if self.is_key else _REMEDY) from error

    def _decode_list(self, element: Column, texts: pa.Array) -> pa.Array:
        try:
            offsets, flat = split(texts)
        except NotOneDimension as error:
            raise _refused(element, error.args[0], self.type) from None
        inner = _decode_scalar(element, self.type.value_type, flat)
        return pa.ListArray.from_arrays(offsets, inner, type=self.type, mask=pc.is_null(texts))


def held_columns(schema: TableSchema, options: DeltaOptions) -> tuple[HeldColumn, ...]:
    return tuple(HeldColumn(column, column.name in schema.key, options) for column in schema.columns)


def arrow_schema(columns: tuple[HeldColumn, ...]) -> pa.Schema:
    """Returns the schema of rows in memory and in files."""
    return pa.schema([pa.field(one.name, one.type) for one in columns])


def delta_fields(columns: tuple[HeldColumn, ...]) -> list[Field]:
    """Returns the columns as the table declares them, with comments and NOT NULL."""
    return [_delta_field(one) for one in columns]


def _delta_field(one: HeldColumn) -> Field:
    plain = Schema.from_arrow(pa.schema([pa.field(one.name, one.type, nullable=one.may_be_null)])).fields[0]
    comment = one.column.comment
    metadata = {} if comment is None else {"comment": comment}
    return Field(plain.name, plain.type, nullable=plain.nullable, metadata=metadata)


def loosened(schema: pa.Schema) -> pa.Schema:
    """Makes all nested fields of columns that others added nullable, since all fields within a null are null."""
    return pa.schema([pa.field(one.name, _loosened(one.type)) for one in schema])


def _loosened(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _loosened(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _loosened(kind.value_type)))
    return pa.map_(kind.key_type, _loosened(kind.item_type)) if pa.types.is_map(kind) else kind


_WIDTHS = (pa.int16(), pa.int32(), pa.int64())
_PLAIN_SCALE = 6  # a decimal of a larger scale may be cast to text with an exponent, which the source never writes


def widens(before: pa.DataType, after: pa.DataType) -> bool:
    """Whether each value of one type is cast to the other as PostgreSQL does it: as the same number."""
    if before in _WIDTHS and after in _WIDTHS:
        return _WIDTHS.index(before) < _WIDTHS.index(after)
    if before == pa.float32():
        return bool(after == pa.float64())
    if pa.types.is_decimal(before) and pa.types.is_decimal(after):
        more = after.scale - before.scale
        return bool(more >= 0 and after.precision - before.precision >= more)
    return bool(pa.types.is_decimal(before) and before.scale <= _PLAIN_SCALE and pa.types.is_string(after))


def needs_zoneless(fields: Sequence[Field]) -> bool:
    """Whether any column is a timestamp without time zone, which requires a table feature of the protocol."""
    return any('"timestamp_ntz"' in field.to_json() for field in fields)


# -- values -----------------------------------------------------------------------------------------------------------


def _scalar_type(column: Column, options: DeltaOptions) -> pa.DataType:
    wanted = values.arrow_type(column)
    if column.type.root.oid == _NUMERIC and pa.types.is_string(wanted) and options.numeric_type is not None:
        wanted = pa.decimal128(*options.numeric_type)
    ranged = pa.types.is_temporal(wanted) or pa.types.is_decimal(wanted)
    return pa.string() if ranged and options.out_of_range == "text" else wanted


def _decode_scalar(column: Column, wanted: pa.DataType, texts: pa.Array) -> pa.Array:
    if wanted == values.arrow_type(column):
        return values.decode(column, texts)
    try:
        return _cast(texts, wanted)
    except pa.ArrowInvalid:
        raise _refused(column, _first_unheld(texts, wanted), wanted) from None


def _cast(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    return pc.cast(pc.cast(texts, pa.string()), wanted)


def _first_unheld(texts: pa.Array, wanted: pa.DataType) -> str:
    """Returns a value that cannot be cast, found by halving. At least one of the values must be such."""
    while len(texts) > 1:
        half = len(texts) // 2
        try:
            _cast(texts.slice(0, half), wanted)
            texts = texts.slice(half)
        except pa.ArrowInvalid:
            texts = texts.slice(0, half)
    return str(texts[0].as_py().decode())


def _refused(column: Column, what: str, wanted: pa.DataType) -> PgetlError:
    message = f"Column {column.name} ({column.sql_type}) holds {what}, which {wanted} cannot represent."
    return PgetlError(ErrorKind.VALUE, message)
