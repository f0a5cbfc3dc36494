"""Before anything runs: what is declared and what is there are brought together, or refused with the remedy.

In this order: preflight, publication, lineage, tables, slots. Everything here may be done again at any time while no
worker runs, and changes nothing that is as it should be.

**Slot loss.** Where tables are past Init but what they depend on has changed identity — the cluster, the database, the
publication, a table, the apply slot, the destination's positions — there is a gap in their history. It is never bridged
silently: by `on_slot_lost` the pipeline is refused, or the tables concerned are reset and copied again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_pgetl.engine.destinations.protocol import Positions
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.failpoints import reach
from airflow_provider_pgetl.engine.lineage import compare
from airflow_provider_pgetl.engine.phases import Event, Refused, Reset, TableState, past_init, phase_name
from airflow_provider_pgetl.engine.positions import START, Boundary
from airflow_provider_pgetl.engine.processes import is_gone
from airflow_provider_pgetl.engine.reports import Noted
from airflow_provider_pgetl.engine.source import preflight
from airflow_provider_pgetl.engine.source.candidates import Candidate
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.findings import refuse
from airflow_provider_pgetl.engine.source.lineage import Present, read_lineage
from airflow_provider_pgetl.engine.source.publication import prepare_publication
from airflow_provider_pgetl.engine.source.published import Publication
from airflow_provider_pgetl.engine.source.slot_creation import create_slot
from airflow_provider_pgetl.engine.source.slots import Slot, drop_slot, find_slot, list_slots
from airflow_provider_pgetl.engine.sync import upkeep
from airflow_provider_pgetl.engine.sync.desk import CEILING, states_of
from airflow_provider_pgetl.engine.sync.site import Site
from airflow_provider_pgetl.engine.sync.slots_of_groups import group_slots
from airflow_provider_pgetl.engine.tables import TableName


@dataclass(frozen=True, slots=True)
class Prepared:
    """The declared tables: where each goes, and how large it is."""

    destinations: Mapping[TableName, TableName]
    sizes: Mapping[TableName, int]


def find_candidates(site: Site, connection: Connection) -> tuple[Candidate, ...]:
    """The tables that are declared, as the source has them; refused where the source is not fit for them."""
    survey = preflight.survey(connection, site.spec)
    refuse(survey.matching.findings, ErrorKind.CONFIG)
    refuse(preflight.check(connection, site.spec, site.instance))
    return survey.candidates


def prepare(site: Site, *, streaming: bool) -> Prepared:
    """`streaming`: make sure of the apply slot as well."""
    with site.connect("prepare") as connection:
        candidates = find_candidates(site, connection)
        publications = prepare_publication(connection, site.spec, site.instance, candidates)
        reach("prepare.published")
        site.store.load()
        gaps = _Gaps(site)
        gaps.judge_lineage(connection)
        gaps.judge_tables(candidates, publications)
        if streaming:
            gaps.judge_destination()
            gaps.judge_slot(connection)
        gaps.settle(connection)
        _reconcile(site, candidates, publications)
        _sweep(site, connection)
        if streaming:
            _ensure_slot(site, connection)
    return Prepared(
        {one.table: one.match.destination for one in candidates},
        {one.table: size_of(one) for one in candidates},
    )


def size_of(candidate: Candidate) -> int:
    return sum(one.leaf.size for one in candidate.leaves)


# -- gaps -------------------------------------------------------------------------------------------------------------


class _Gaps:
    """Collects what has no continuous history any more, and then refuses or resets it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._records = site.store.tables()
        self._lost: dict[TableName, str] = {}
        self._present: Present | None = None
        self._slot_void = False

    def judge_lineage(self, connection: Connection) -> None:
        site = self._site
        replication = site.connect_replication("prepare")
        try:
            self._present = read_lineage(replication, connection, site.spec.publication)
        finally:
            replication.finish()
        recorded = site.store.pipeline().lineage
        if recorded is None:
            return
        why = compare(recorded, self._present.lineage, self._furthest(), self._present.wal_end)
        if why is not None:
            self._slot_void = True
            self._lose(self._past_init(), why)

    def _furthest(self) -> Boundary:
        marks = [record.high_water for record in self._records.values()]
        return max([self._site.store.progress(CEILING) or START, *marks])

    def judge_tables(self, candidates: Iterable[Candidate], publications: Sequence[Publication]) -> None:
        for candidate in candidates:
            record = self._records.get(candidate.table)
            if record is None or record.relation is None or not past_init(record.state):
                continue
            if record.relation != candidate.match.relation.oid:
                self._lose([candidate.table], "it was dropped and created again at the source")
            elif record.membership != membership(candidate, publications):
                self._lose([candidate.table], "it was taken out of the publication and put in again")

    def judge_destination(self) -> None:
        """Tables that are followed must stand where they were seen."""
        destination = self._site.open_destination("prepare")
        try:
            if not isinstance(destination, Positions):
                return
            found = destination.positions(self._site.pipeline)
        finally:
            destination.shutdown()
        for table, record in self._records.items():
            metadata = self._site.store.destination_metadata(table)
            if phase_name(record.state.phase) not in ("Ready", "SyncDone") or metadata is None:
                continue
            there = found.get(metadata.destination)
            if there is None:
                self._lose([table], "the destination does not know it any more")
            elif there.position < record.high_water:
                was = f"the destination has it at {there.position}, before {record.high_water} which it had reached"
                self._lose([table], f"{was}: it was restored")

    def judge_slot(self, connection: Connection) -> None:
        slot = find_slot(connection, self._site.apply_slot)
        why = _slot_gap(self._site, slot)
        if why is not None:
            self._slot_void = True
            self._lose(self._past_init(), why)

    def settle(self, connection: Connection) -> None:
        """Refuse, or reset what is lost; then the lineage that is present is the one that counts."""
        site = self._site
        if self._lost and site.spec.source.on_slot_lost == "error":
            raise self._refusal()
        for table, why in self._lost.items():
            site.observer(Noted("warning", f"{table} is copied again, for {why}.", table))
        apply_each(site, {table: Reset(self._records[table].state.generation) for table in self._lost})
        if self._slot_void:
            drop_slot(connection, site.apply_slot, terminate=True)
            site.store.delete_progress(CEILING)
        if self._present is not None:
            site.store.record_lineage(self._present.lineage)

    def _refusal(self) -> PgetlError:
        reasons: dict[str, list[TableName]] = {}
        for table, why in self._lost.items():
            reasons.setdefault(why, []).append(table)
        said = "; ".join(f"{why} ({', '.join(map(str, sorted(tables)))})" for why, tables in reasons.items())
        kind = ErrorKind.LINEAGE if self._slot_void else ErrorKind.SLOT_LOST
        return PgetlError(kind, f"Changes may be missing: {said}.", remedy=_GAP_REMEDY)

    def _past_init(self) -> list[TableName]:
        return [table for table, record in self._records.items() if past_init(record.state)]

    def _lose(self, tables: Iterable[TableName], why: str) -> None:
        for table in tables:
            self._lost.setdefault(table, why)


_GAP_REMEDY = (
    "If this is the right source and destination, copy the tables again: `pgetl reset FILE TABLE` for each, "
    'or set on_slot_lost = "resync".'
)


def _slot_gap(site: Site, slot: Slot | None) -> str | None:
    """Why the apply slot cannot carry on, if tables depend on it."""
    if not upkeep.apply_slot_needed(states_of(site.store)):
        return None
    if slot is None:
        return f"the replication slot {site.apply_slot} does not exist any more"
    if slot.lost is not None:
        return f"the replication slot {slot.name} is lost ({slot.lost})"
    ceiling = site.store.progress(CEILING) or START
    if slot.confirmed is None or slot.confirmed > ceiling:
        return f"the replication slot {slot.name} was confirmed by somebody else up to {slot.confirmed}"
    return None


# -- tables -----------------------------------------------------------------------------------------------------------


def _reconcile(site: Site, candidates: Sequence[Candidate], publications: Sequence[Publication]) -> None:
    """New tables come in Init; those that were undeclared go, their data in the destination stays."""
    declared = {candidate.table for candidate in candidates}
    for table in set(site.store.tables()) - declared:
        site.store.delete_table(table)
        site.observer(Noted("info", f"{table} is not declared any more; its data in the destination stays.", table))
    for candidate in candidates:
        record = site.store.tables().get(candidate.table)
        oid, member = candidate.match.relation.oid, membership(candidate, publications)
        if record is None or (record.relation, record.membership) != (oid, member):
            site.store.register(candidate.table, oid, member)


def membership(candidate: Candidate, publications: Sequence[Publication]) -> int | None:
    """The table's pg_publication_rel row, in whichever of our publications it is."""
    for publication in publications:
        share = publication.share(candidate.match.relation.oid, candidate.access.namespace)
        if share is not None:
            return share.membership
    return None


def _sweep(site: Site, connection: Connection) -> None:
    """What dead copies and dead groups left."""
    store = site.store
    roll_back_dead_copies(site)
    slots = group_slots(list_slots(connection, site.pipeline, site.instance))
    alive = {attempt for attempt, slot in slots.items() if slot.lost is None}
    lost = apply_judged(site, lambda states: upkeep.lost_groups(states, alive | store.live_attempts()))
    for table in lost:
        site.observer(Noted("warning", f"{table} is copied again: nothing holds the changes since its copy.", table))
    busy = store.live_attempts()
    store.load()
    for attempt in upkeep.slots_to_drop(states_of(store), slots, busy):
        drop_slot(connection, slots[attempt].name, terminate=True)


def roll_back_dead_copies(site: Site) -> None:
    """A copy is dead whose attempt was not alive between two looks that found the table in its hands: it has neither
    begun nor ended meanwhile. For one of a process that is gone, nobody waits until its time has run out."""
    before = states_of(site.store)
    holders = site.store.attempt_holders()
    live = {attempt for attempt, holder in holders.items() if not is_gone(holder)}
    for attempt in holders.keys() - live:
        site.store.end_attempt(attempt)
    apply_judged(site, lambda states: upkeep.dead_copies({t: s for t, s in states.items() if before.get(t) == s}, live))


def apply_judged(
    site: Site, judge: Callable[[Mapping[TableName, TableState]], Mapping[TableName, Event]]
) -> list[TableName]:
    site.store.load()
    events = judge(states_of(site.store))
    apply_each(site, events)
    return sorted(events)


def apply_each(site: Site, events: Mapping[TableName, Event]) -> None:
    """Table by table: one that somebody moved meanwhile refuses for itself alone."""
    for table, event in events.items():
        answer = site.store.apply({table: event})
        if isinstance(answer, Refused):
            site.observer(Noted("info", f"{type(event).__name__} of {table} was refused: {answer.why}.", table))


# -- the apply slot ---------------------------------------------------------------------------------------------------


def _ensure_slot(site: Site, connection: Connection) -> None:
    """Made before the first table is copied. One that no table depends on yet, and that we did not confirm, is made
    anew."""
    slot = find_slot(connection, site.apply_slot)
    ceiling = site.store.progress(CEILING)
    if slot is not None and slot.lost is None and ceiling is not None and (slot.confirmed or START) <= ceiling:
        return
    drop_slot(connection, site.apply_slot, terminate=True)
    replication = site.connect_replication("prepare")
    try:
        made = create_slot(replication, connection, site.apply_slot, failover=site.spec.source.failover)
    finally:
        replication.finish()
    reach("prepare.slot_created")
    site.store.record_progress(CEILING, made.consistent_point)
