"""Rows that differ, as a person is shown them: key by key, column by column.

Values are those that were compared: of both sides in the destination's types. A long value is shown around the first
place at which the two differ.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_pgetl.engine.verify.comparing import Side, Suspects
from airflow_provider_pgetl.engine.verify.hashing import Hashes
from airflow_provider_pgetl.engine.verify.results import NULL, Difference, Kind

SHOWN_LETTERS = 120
_ROWS_OF_A_KEY = 100

Row = Mapping[str, str]
_PLAIN = re.compile(r"[\w.+-]+")


def differences(source: Side, destination: Side, found: Suspects) -> Iterator[Difference]:
    """Reads those parts once more in which rows of the keys were met."""
    keys = np.sort(found.keys)
    here = _rows_of(source, found.source_parts, keys)
    there = _rows_of(destination, found.destination_parts, keys)
    for key in found.keys.tolist():
        yield from _of_key(here[key], there[key], source.key)


def _rows_of(side: Side, parts: Set[int], keys: Hashes) -> defaultdict[int, list[tuple[int, Row]]]:
    """By the hash of their key the rows, each with its own hash."""
    found: defaultdict[int, list[tuple[int, Row]]] = defaultdict(list)
    for number in sorted(parts):
        for table, key_hashes, row_hashes in side.rows_of(number):
            for at in np.flatnonzero(np.isin(key_hashes, keys)).tolist():
                rows = found[int(key_hashes[at])]
                if len(rows) < _ROWS_OF_A_KEY:
                    rows.append((int(row_hashes[at]), _row(table, at)))
    return found


def _of_key(here: list[tuple[int, Row]], there: list[tuple[int, Row]], key: Sequence[str]) -> Iterator[Difference]:
    only_here, only_there = _less(here, there), _less(there, here)
    while only_here and only_there:
        one, other = only_here.pop(), only_there.pop()
        columns = {name: _beside(one[name], other[name]) for name in one if one[name] != other[name]}
        yield Difference("changed", _key(one, key), columns)
    kind: Kind = "missing" if only_here else "extra"
    for row in only_here or only_there:
        yield Difference(kind, _key(row, key))


def _less(rows: list[tuple[int, Row]], others: list[tuple[int, Row]]) -> list[Row]:
    left = Counter(row_hash for row_hash, _ in others)
    kept = []
    for row_hash, row in rows:
        if left[row_hash]:
            left[row_hash] -= 1
        else:
            kept.append(row)
    return kept


def _key(row: Row, key: Sequence[str]) -> Row:
    return {name: _cut(row[name], 0) for name in key}


def _row(table: pa.Table, at: int) -> Row:
    return {name: text_of(table.column(name)[at]) for name in table.column_names}


def text_of(value: pa.Scalar) -> str:
    """As a person reads it, different for values that are."""
    if not value.is_valid:
        return NULL
    if pa.types.is_date(value.type) or pa.types.is_timestamp(value.type):
        return str(value.cast(pa.string()))
    return _text(value.as_py())


def _text(plain: Any) -> str:
    if plain is None:
        return NULL
    if isinstance(plain, bytes):
        try:
            return _quoted(plain.decode())
        except UnicodeDecodeError:
            return f"\\x{plain.hex()}"
    if isinstance(plain, list):
        return "[" + ", ".join(map(_text, plain)) + "]"
    return _quoted(plain) if isinstance(plain, str) else str(plain)


def _quoted(text: str) -> str:
    """In quotes where it might be taken for something else."""
    return text if _PLAIN.fullmatch(text) and text != NULL else repr(text)


def _beside(one: str, other: str) -> tuple[str, str]:
    """Both cut alike."""
    unlike = (at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right)
    first = next(unlike, min(len(one), len(other)))
    return _cut(one, first), _cut(other, first)


def _cut(text: str, around: int) -> str:
    if len(text) <= SHOWN_LETTERS:
        return text
    begin = max(0, min(around - SHOWN_LETTERS // 3, len(text) - SHOWN_LETTERS))
    shown = text[begin : begin + SHOWN_LETTERS]
    return f"{'…' if begin else ''}{shown}{'…' if begin + SHOWN_LETTERS < len(text) else ''} ({len(text):,} letters)"
