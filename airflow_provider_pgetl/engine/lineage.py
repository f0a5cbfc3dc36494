"""The history of a source in which positions mean something, and whether it is still the one we knew.

A WAL position is only a number. START_REPLICATION takes one from another cluster without complaint and then sends
nothing, so before any position is used the lineage that it was recorded with is held against the one that is present.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_pgetl.engine.positions import START, Boundary


@dataclass(frozen=True, slots=True)
class Lineage:
    """The history in which positions mean something. Two lineages are never compared, only found to differ.

    `switch_points` are the earlier timelines, oldest first, each with the position at which it was left. `publication`
    is 0 while there is none. `ended` says why it is known that the source does not continue this lineage, where that
    was seen by what it sends: nothing that could be asked of it shows it later.
    """

    system: str
    timeline: int
    switch_points: tuple[tuple[int, Boundary], ...]
    database: int
    publication: int
    ended: str | None = None


def compare(
    recorded: Lineage, present: Lineage, furthest: Boundary, wal_end: Boundary, confirmed: Boundary = START
) -> str | None:
    """Why positions recorded under `recorded` mean nothing any more, or None if they still do.

    `furthest` is the furthest position that was ever recorded, `wal_end` where the present WAL ends. A failover that
    lost nothing of what we saw is no difference: the new timeline branched at or after `furthest`, or the slot was
    confirmed on it, up to `confirmed`, by a stream that was connected while the standby was promoted.
    """
    return (
        _another_place(recorded, present)
        or recorded.ended
        or _another_branch(recorded, present, furthest, confirmed)
        or _shorter(furthest, wal_end)
    )


def _another_place(recorded: Lineage, present: Lineage) -> str | None:
    if recorded.system != present.system:
        return f"the source is another cluster: system identifier {present.system}, not {recorded.system}"
    if recorded.database != present.database:
        return f"the source is another database: its OID is {present.database}, not {recorded.database}"
    if present.publication == 0:
        return "the publication was dropped"
    if recorded.publication != present.publication:
        return f"the publication was dropped and made again: OID {present.publication}, not {recorded.publication}"
    return None


def _another_branch(recorded: Lineage, present: Lineage, furthest: Boundary, confirmed: Boundary) -> str | None:
    if present.timeline < recorded.timeline:
        return f"the source went back from timeline {recorded.timeline} to {present.timeline}: it was restored"
    left = dict(present.switch_points)
    for timeline, switched in recorded.switch_points:
        if left.get(timeline) != switched:
            return f"the source followed another branch: it did not leave timeline {timeline} at {switched}"
    if present.timeline == recorded.timeline:
        return None
    branched = left.get(recorded.timeline)
    if branched is None:
        return f"the source's timeline {present.timeline} does not descend from timeline {recorded.timeline}"
    if branched < furthest and confirmed <= branched:
        return f"timeline {present.timeline} branched at {branched}, before {furthest} which was already seen"
    return None


def _shorter(furthest: Boundary, wal_end: Boundary) -> str | None:
    if wal_end < furthest:
        return f"the source's WAL ends at {wal_end}, before {furthest} which was already seen: it was restored"
    return None
