"""Compares two PostgreSQL servers by sums that both compute themselves over the texts of their rows.

This proves in one pass on each server, without sending a row, that a table is equal. It is tried first, if the
destination is a PostgreSQL server and all rows are to be compared. If the sums differ, for whatever reason, nothing is
concluded from that: the rows are then read and compared. Sums over the rows that were changed meanwhile are subtracted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_pgetl.engine.destinations.protocol import Part, Summing
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.verify.moment import Pair

_KEYS_AT_MOST = 10_000

Stopped = Callable[[], bool]
Both = Callable[[Callable[[Stopped], None], Callable[[Stopped], None], Stopped], None]


@dataclass(slots=True)
class Sums:
    """`encodings`: those of the server; what is summed are bytes."""

    encodings: frozenset[bytes] = frozenset()
    rows: int = 0
    first: int = 0
    second: int = 0

    def add(self, parts: Sequence[Part], sign: int, ended: Stopped) -> None:
        for part in parts:
            if ended():
                return
            for table in part():
                (row,) = table.to_pylist()
                self.encodings |= {row["encoding"]}
                self.rows += sign * int(row["rows"])
                self.first += sign * int(row["first"])
                self.second += sign * int(row["second"])


def equal_rows(pair: Pair, changed: pa.Table, both: Both, stopped: Stopped) -> int | None:
    """Returns the number of rows, without the changed ones, if both sides have the same; None if that is not known.
    `both` runs two functions at the same time."""
    there = pair.destination
    if pair.source.transform is not None:
        return None  # equal sums would mean that values were not transformed
    keys = changed.group_by(changed.column_names).aggregate([]) if changed.num_rows else None
    if not isinstance(there, Summing) or (keys is not None and not _are_found(pair, keys)):
        return None
    names = pair.compared
    here_sums, there_sums = Sums(), Sums()

    def add(sums: Sums, of: Summing, ended: Stopped) -> None:
        sums.add(of.sums(names), 1, ended)
        if keys is not None:
            sums.add(of.sums(names, keys), -1, ended)

    try:
        both(lambda ended: add(here_sums, pair.source, ended), lambda ended: add(there_sums, there, ended), stopped)
    except PgetlError as error:
        if error.transient or error.kind is ErrorKind.TABLE_REWRITTEN:
            raise
        return None  # for instance, the text of a whole row is too long for the server
    return here_sums.rows if here_sums == there_sums else None


def _are_found(pair: Pair, keys: pa.Table) -> bool:
    return keys.num_rows <= _KEYS_AT_MOST and pair.source.finds_keys
