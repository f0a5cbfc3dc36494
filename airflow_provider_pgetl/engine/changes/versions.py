"""Rows that the source sent under an earlier version of their table's schema, as rows of a later version.

A batch is written under one version of each table. Rows that were sent before the table was altered are converted to
that version, to the byte, before anything reads them: what they lack gets the value that the source gave to its
existing rows, which it does not send.

A column whose type was widened has its values converted as well, as their binary form is another.

Columns of two versions are the same column if they have the same attribute number, whatever their names; where a number
is not known, if they have the same name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from struct import Struct

import numpy as np

from airflow_provider_pgetl.engine.changes.batch import WireRows, sealed_rows
from airflow_provider_pgetl.engine.model.tables import Column, TableSchema
from airflow_provider_pgetl.engine.model.widening import Field, widening

_TUPLE = 30  # the XLogData header, the kind of the message, the relation
_COUNT, _LENGTH = Struct("!H"), Struct("!I")
_NULL = b"n"
_KEY_ONLY = ord("K")
_VALUED = frozenset(b"tb")


@dataclass(frozen=True, slots=True)
class Alterations:
    """How two versions differ: columns that were `added`, those that were `renamed` (before and after), those that have
    another type (`retyped`, before and after), those that have become nullable (`loosened`), and those that were
    `dropped`."""

    added: tuple[Column, ...] = ()
    renamed: tuple[tuple[Column, Column], ...] = ()
    retyped: tuple[tuple[Column, Column], ...] = ()
    loosened: tuple[Column, ...] = ()
    dropped: tuple[Column, ...] = ()


def alterations(before: TableSchema, after: TableSchema) -> Alterations:
    known = {column.number or column.name: column for column in before.columns}
    pairs = [(known.pop(column.number or column.name, None), column) for column in after.columns]
    return Alterations(
        tuple(column for was, column in pairs if was is None),
        tuple((was, column) for was, column in pairs if was is not None and was.name != column.name),
        tuple((was, column) for was, column in pairs if was is not None and was.sql_type != column.sql_type),
        tuple(column for was, column in pairs if was is not None and was.not_null and not column.not_null),
        tuple(known.values()),
    )


def changes_between(before: TableSchema, after: TableSchema) -> str:
    """Describes what was altered."""
    found = alterations(before, after)
    said = [f"{column.name} {column.sql_type} added{_in_existing_rows(column)}" for column in found.added]
    said += [f"{was.name} renamed to {column.name}" for was, column in found.renamed]
    said += [f"{column.name} {was.sql_type} made {column.sql_type}" for was, column in found.retyped]
    said += [f"{column.name} made nullable" for column in found.loosened]
    said += [f"{column.name} dropped" for column in found.dropped]
    return "; ".join(said) or "nothing that is replicated"


def _in_existing_rows(column: Column) -> str:
    return "" if column.missing is None else ", with a value in existing rows"


def made_nullable(versions: Sequence[TableSchema]) -> set[str]:
    """Returns the columns of the last version that were NOT NULL in an earlier one, and are not any more."""
    strict = {column.number or column.name for version in versions for column in version.columns if column.not_null}
    return {one.name for one in versions[-1].columns if not one.not_null and (one.number or one.name) in strict}


def passed_on(versions: Sequence[TableSchema], present: Collection[str]) -> str | None:
    """Returns why a table with these columns cannot have the last version; None if it can. It knows its columns by
    their names: a name cannot pass from one to another while the table has the former one."""
    *earlier, wanted = versions
    there = version_there(earlier, present)
    held = {column.name: column.number for column in there.columns}
    former = {column.name for version in earlier for column in version.columns}
    for column in wanted.columns:
        known = column.number and column.name in present and column.name in former
        if known and held.get(column.name) != column.number:
            return f"{column.name} was dropped and added again"
    return None


def version_there(versions: Sequence[TableSchema], names: Collection[str]) -> TableSchema:
    """Returns the version that a destination's table with these columns has: the newest of which it has all columns;
    the oldest if there is none."""
    return next((one for one in reversed(versions) if set(one.names) <= set(names)), versions[0])


Place = int | bytes | tuple[int, Field]
Places = tuple[Place, ...]
"""For each column of the later version: its index in the earlier one, perhaps with what converts its fields; or its
field, as pgoutput would send it."""


def places(before: TableSchema, after: TableSchema) -> Places | None:
    """Returns where the columns of `after` are in rows of `before`; None if the rows are the same."""
    found = tuple(_place(before.columns, column) for column in after.columns)
    return None if found == tuple(range(len(before.columns))) else found


def _place(columns: Sequence[Column], wanted: Column) -> Place:
    for index, column in enumerate(columns):
        if (column.number or column.name) == (wanted.number or wanted.name):
            convert = widening(column, wanted)
            return index if convert is None else (index, convert)
    return _field(wanted.missing)


def _field(value: str | None) -> bytes:
    if value is None:
        return _NULL
    text = value.encode()
    return b"t" + _LENGTH.pack(len(text)) + text


def converted(rows: WireRows, after: TableSchema) -> WireRows:
    """Returns the rows under the schema `after`, a later version of theirs."""
    wanted = places(rows.schema, after)
    if wanted is None:
        return replace(rows, schema=after)
    ends = np.append(rows.starts[1:], len(rows.buffer))
    data = rows.buffer.tobytes()
    bounds = zip(rows.starts.tolist(), ends.tolist(), strict=True)
    messages = [_converted(data[start:end], wanted) for start, end in bounds]
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    whole = sealed_rows(after, b"".join(messages), lengths, (), rows.ordinals)
    return replace(whole, commit_lsns=rows.commit_lsns, commit_times=rows.commit_times)


def _converted(message: bytes, wanted: Places) -> bytes:
    """Returns the message with its tuples converted. An old tuple that holds only the key has null in all others."""
    parts = [message[:_TUPLE]]
    at = _TUPLE
    while at < len(message):
        marker = message[at]
        fields, end = _fields(message, at + 1)
        parts += (message[at : at + 1], _COUNT.pack(len(wanted)))
        for one in wanted:
            if isinstance(one, int):
                parts.append(fields[one])
            elif isinstance(one, tuple):
                index, convert = one
                parts.append(convert(fields[index]))
            else:
                parts.append(_NULL if marker == _KEY_ONLY else one)
        at = end
    return b"".join(parts)


def _fields(message: bytes, at: int) -> tuple[list[bytes], int]:
    """Returns the fields of the tuple at this place, and where it ends."""
    (count,) = _COUNT.unpack_from(message, at)
    at += _COUNT.size
    fields = []
    for _ in range(count):
        end = at + 1
        if message[at] in _VALUED:
            end += _LENGTH.size + _LENGTH.unpack_from(message, end)[0]
        fields.append(message[at:end])
        at = end
    return fields, at
