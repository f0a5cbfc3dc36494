"""How it is found out that source and destination are one database, whatever their URIs look like.

The source's session holds an advisory lock of a random number; in the same database, and nowhere else, another session
sees it. A standby's locks are not seen at its primary, so a standby is told by what it has in common with that: system
identifier, timeline and the database's OID.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Primary:
    """What a standby says of the database that it repeats."""

    system: str
    timeline: int
    database: int


@dataclass(frozen=True, slots=True)
class Mark:
    """`key` is the advisory lock. `primary` is set if the source is a standby."""

    key: int
    primary: Primary | None = None
