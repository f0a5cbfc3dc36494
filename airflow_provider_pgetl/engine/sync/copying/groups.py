"""Which tables share a snapshot.

A sync group costs the source a replication slot and a decoding of its WAL until its tables are handed over. One per
table would exhaust the slots of a server with many small tables; one for all would make every table wait for the
largest. So a table of `group_bytes` or more is a group of its own, and smaller ones are packed up to that size.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_pgetl.engine.tables import TableName

Group = tuple[TableName, ...]


def form_groups(sizes: Mapping[TableName, int], group_bytes: int) -> list[Group]:
    """Every table in one group, the largest tables first; the same sizes always give the same groups.

    No group is larger than `group_bytes` unless it is a single table, and no two groups would fit into one.
    """
    groups: list[list[TableName]] = []
    filled: list[int] = []
    for table in sorted(sizes, key=lambda table: (-sizes[table], table)):
        place = _first_fit(filled, sizes[table], group_bytes)
        if place is None:
            groups.append([table])
            filled.append(sizes[table])
        else:
            groups[place].append(table)
            filled[place] += sizes[table]
    return [tuple(group) for group in groups]


def _first_fit(filled: list[int], size: int, limit: int) -> int | None:
    return next((place for place, used in enumerate(filled) if used + size <= limit), None)
