"""The output of COPY … TO STDOUT: its bytes as they arrive on a connection, and its rows as columns of texts.

All rows of a PostgreSQL database, of the source or of a destination, are read here. In CSV with every value quoted,
NULL (nothing) and the empty string (``""``) differ, and each value is the text that its type's output function returns,
exactly as pgoutput sends it. (A cast to text differs: it shortens char(n), spells booleans out and adds masks to inet.)
Arrow parses whole blocks at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from select import POLLIN, poll

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
from psycopg import pq

CSV_OPTIONS = "FORMAT csv, FORCE_QUOTE *"
BATCH_BYTES = 16 << 20

# A block is joined from one small object per row. malloc allocates and frees these cheaply only while few are alive:
# measured, blocks of 48 KiB and more cost twice the CPU time.
BLOCK_BYTES = 16 << 10


def readable(pgconn: pq.abc.PGconn, timeout: float | None = None) -> bool:
    """Waits until the server has sent something; returns False when `timeout` seconds have passed."""
    waiting = poll()
    waiting.register(pgconn.socket, POLLIN)
    return bool(waiting.poll(None if timeout is None else max(0.0, timeout) * 1000))


def copied_blocks(pgconn: pq.abc.PGconn) -> Iterator[bytes]:
    """Yields the data of a COPY that has begun, byte for byte, in pieces of whole rows. The caller reads the command's
    result.

    This bypasses psycopg's cursors, which return one row at a time through several layers: it costs less than half.
    """
    get = pgconn.get_copy_data
    gathered: list[memoryview] = []
    size = 0
    while True:
        length, data = get(1)
        if length < 0:
            break
        if length == 0:
            # Waiting inside libpq would block every other thread of this process.
            readable(pgconn)
            pgconn.consume_input()
            continue
        gathered.append(data)
        size += length
        if size >= BLOCK_BYTES:
            yield b"".join(gathered)
            gathered.clear()
            size = 0
    if gathered:
        yield b"".join(gathered)


def gathered(blocks: Iterable[bytes], size: int = BATCH_BYTES) -> Iterator[bytes]:
    """The same bytes in larger pieces; each block holds whole rows, and so does each piece."""
    parts: list[bytes] = []
    held = 0
    for block in blocks:
        parts.append(block)
        held += len(block)
        if held >= size:
            yield b"".join(parts)
            parts, held = [], 0
    if held:
        yield b"".join(parts)


def parse_copy_rows(data: bytes, width: int) -> list[pa.Array]:
    """The columns of these rows as Arrow binary; a field without a value is null."""
    names = [str(index) for index in range(width)]
    table = csv.read_csv(
        pa.BufferReader(data),
        csv.ReadOptions(column_names=names, block_size=len(data) + 1, use_threads=False),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [column.combine_chunks() for column in table.columns]


def text_tables(names: Sequence[str], blocks: Iterable[bytes], size: int = BATCH_BYTES) -> Iterator[pa.Table]:
    """The rows of a COPY stream in CSV, as tables of about `size` bytes; each value is the text that was sent."""
    for data in gathered(blocks, size):
        yield pa.Table.from_arrays(parse_copy_rows(data, len(names)), names=list(names))


SUMS = ("encoding", "rows", "first", "second")


def sums_query(values: Sequence[str], source: str) -> str:
    """Returns the COPY of one row, with the columns `SUMS`: what a server computes of all rows of `source`, a FROM
    clause with its conditions. Two servers return the same if their rows have the same texts of these values, in any
    order; and, except for one case in 2^64, only then. Sums over disjoint sets of rows may be added.

    The text of a record has each value as its type's output function returns it, and tells NULL from an empty value.
    Hashes are of bytes, so that the encoding counts, too.
    """
    rows = f'SELECT ROW({", ".join(values)})::pg_catalog.text COLLATE "C" AS t {source} OFFSET 0'
    sums = ", ".join(f"coalesce(sum(hashtextextended(t, {seed})), 0)" for seed in (0, 1))
    return f"COPY (SELECT getdatabaseencoding(), count(*), {sums} FROM ({rows}) r) TO STDOUT ({CSV_OPTIONS})"


def among(columns: Sequence[str], types: Sequence[str], keys: pa.Table) -> str:
    """The SQL condition that these columns equal one of the keys, whose values are given as texts of these types. There
    must be at least one key."""
    rows = zip(*(column.to_pylist() for column in keys.columns), strict=True)
    values = ", ".join(f"({', '.join(map(_literal, row, types))})" for row in rows)
    return f"({', '.join(columns)}) IN (VALUES {values})"


def _literal(text: bytes, sql_type: str) -> str:
    """The text as a literal under `standard_conforming_strings`, which all pgetl sessions pin."""
    quoted = text.decode().replace("'", "''")
    return f"'{quoted}'::{sql_type}"


# -- COPY's text format, for destinations that process rows. -----------------------------------------------------------
#
# A value is the bytes of the type's text form, as a change in text form carries them; None is NULL.

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_NAMED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_SPECIAL = re.compile(rb"[\\\n\r\t]")
_WRITTEN = {b"\\": rb"\\", b"\n": rb"\n", b"\r": rb"\r", b"\t": rb"\t"}


def rows(names: Sequence[str], blocks: Iterable[bytes]) -> Iterator[dict[str, bytes | None]]:
    """The rows of a COPY stream; blocks may end anywhere."""
    for line in lines(blocks):
        values = line.split(b"\t") if names else []
        yield dict(zip(names, map(read, values), strict=True))


def lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The stream's lines, without their ends. A newline inside a value is escaped, so every newline ends a line."""
    rest = b""
    for block in blocks:
        *whole, rest = (rest + bytes(block)).split(b"\n")
        yield from whole


def read(field: bytes) -> bytes | None:
    if field == rb"\N":
        return None
    return _ESCAPE.sub(_unescape, field) if b"\\" in field else field


def write(values: Iterable[bytes | None]) -> bytes:
    """One row as a line of the stream."""
    return b"\t".join(rb"\N" if value is None else _escape(value) for value in values) + b"\n"


def copy_text(columns: Sequence[pa.Array]) -> bytes:
    """Rows in COPY's text format, from columns of texts in Arrow binary."""
    escaped = [_escaped(column.cast(pa.large_binary())).fill_null(rb"\N") for column in columns]
    rows = pc.binary_join_element_wise(*escaped, _scalar(b"\t"))
    lines = pc.binary_join_element_wise(rows, _scalar(b""), _scalar(b"\n"))
    ends = np.frombuffer(lines.buffers()[1], dtype=np.int64)
    data = lines.buffers()[2]
    return b"" if data is None else data.to_pybytes()[: int(ends[len(lines)])]


def _escaped(texts: pa.Array) -> pa.Array:
    for plain, written in _WRITTEN.items():  # the backslash is the first, before others are written with one
        if pc.any(pc.match_substring(texts, plain)).as_py():
            texts = pc.replace_substring(texts, plain, written)
    return texts


def _scalar(text: bytes) -> pa.Scalar:
    return pa.scalar(text, pa.large_binary())


def _escape(value: bytes) -> bytes:
    return _SPECIAL.sub(lambda match: _WRITTEN[match[0]], value)


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if code[:1] == b"x" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    if code[:1].isdigit() and code[:1] < b"8":
        return bytes([int(code, 8) & 0xFF])
    return _NAMED.get(code, code)
