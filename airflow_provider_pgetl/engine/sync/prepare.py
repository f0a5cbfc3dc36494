"""Before anything runs: what is declared and what is there are brought together, or refused with the remedy.

In this order: preflight of source and destination, tables of which something else is declared than before, publication,
gaps in history, tables, slots. Everything here may be done again at any time while no worker runs, and changes nothing
that is as it should be.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.failpoints import reach
from airflow_provider_pgetl.engine.findings import refuse
from airflow_provider_pgetl.engine.positions import START
from airflow_provider_pgetl.engine.processes import is_gone
from airflow_provider_pgetl.engine.reports import Noted
from airflow_provider_pgetl.engine.source import preflight
from airflow_provider_pgetl.engine.source.candidates import Candidate
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.publication import foresee_publication, prepare_publication
from airflow_provider_pgetl.engine.source.published import Publication
from airflow_provider_pgetl.engine.source.slot_creation import create_slot
from airflow_provider_pgetl.engine.source.slots import deciding, drop_slot, find_slot, list_slots
from airflow_provider_pgetl.engine.sync import declared, upkeep
from airflow_provider_pgetl.engine.sync.abandoning import abandon_copies
from airflow_provider_pgetl.engine.sync.copying.job import CopyTable
from airflow_provider_pgetl.engine.sync.desk import CEILING, states_of
from airflow_provider_pgetl.engine.sync.events import apply_judged
from airflow_provider_pgetl.engine.sync.fitness import expect_fit
from airflow_provider_pgetl.engine.sync.gaps import Gaps
from airflow_provider_pgetl.engine.sync.site import Site
from airflow_provider_pgetl.engine.sync.slots_of_groups import group_slots
from airflow_provider_pgetl.engine.table_names import written
from airflow_provider_pgetl.engine.tables import TableName


@dataclass(frozen=True, slots=True)
class Prepared:
    """The declared tables: what a copy of each is asked to do, and how large it is."""

    copies: Mapping[TableName, CopyTable]
    sizes: Mapping[TableName, int]


def find_candidates(site: Site, connection: Connection) -> tuple[Candidate, ...]:
    """The tables that are declared, as the source has them; refused where the source is not fit for them."""
    refuse(preflight.check(connection, site.spec, site.instance))
    survey = preflight.survey(connection, site.spec)
    refuse(survey.matching.findings)  # once more: what was there a moment ago may have been dropped
    return survey.candidates


def prepare(site: Site, *, streaming: bool) -> Prepared:
    """`streaming`: make sure of the apply slot as well."""
    with site.connect("prepare") as connection:
        candidates = find_candidates(site, connection)
        expect_fit(site, connection, candidates)
        _refuse_another_source(site, connection)
        publications = _publish(site, connection, candidates)
        judge_gaps(site, connection, candidates, publications, streaming=streaming).settle(connection)
        _reconcile(site, candidates, publications)
        _sweep(site, connection)
        if streaming:
            _ensure_slot(site, connection)
    return Prepared(
        {one.table: copy_of(site, one) for one in candidates},
        {one.table: size_of(one) for one in candidates},
    )


def _refuse_another_source(site: Site, connection: Connection) -> None:
    """Before anything is made there."""
    site.store.load()
    gaps = Gaps(site)
    gaps.judge_lineage(connection)
    gaps.refuse()


def _publish(site: Site, connection: Connection, candidates: Sequence[Candidate]) -> tuple[Publication, ...]:
    """Tables of which something else is wanted are reset before anything else is published of them: whoever dies in
    between, and whatever the declaration says by then, no table goes on with rows that were chosen otherwise. And once
    more after that, as others may have changed a publication that is not ours."""
    _copy_changed_anew(site, candidates, foresee_publication(connection, site.spec, site.instance, candidates))
    reach("prepare.reset")
    publications = prepare_publication(connection, site.spec, site.instance, candidates)
    reach("prepare.published")
    _copy_changed_anew(site, candidates, publications)
    return publications


def _copy_changed_anew(site: Site, candidates: Sequence[Candidate], publications: Sequence[Publication]) -> None:
    site.store.load()
    declared.copy_anew(site, declared.changed(site, candidates, publications))


def judge_gaps(
    site: Site,
    connection: Connection,
    candidates: Sequence[Candidate],
    publications: Sequence[Publication],
    *,
    streaming: bool,
    anyway: Collection[TableName] = (),
) -> Gaps:
    """`anyway`: tables that are copied anew in any case."""
    gaps = Gaps(site, anyway)
    gaps.judge_lineage(connection)
    gaps.judge_tables(candidates, publications)
    if streaming:
        gaps.judge_destination()
        gaps.judge_slot(connection)
    return gaps


def copy_of(site: Site, candidate: Candidate) -> CopyTable:
    match = candidate.match
    return CopyTable(match.table, match.destination, site.spec.replaces(match.spec))


def size_of(candidate: Candidate) -> int:
    return sum(one.leaf.size for one in candidate.leaves)


# -- tables -----------------------------------------------------------------------------------------------------------


def _reconcile(site: Site, candidates: Sequence[Candidate], publications: Sequence[Publication]) -> None:
    """New tables come in Init; those that were undeclared go, their data in the destination stays."""
    gone = {*site.store.tables()} - {candidate.table for candidate in candidates}
    abandon_copies(site, [site.store.tables()[table] for table in gone])
    for table in gone:
        site.store.delete_table(table)
        site.observer(
            Noted("info", f"{written(table)} is not declared any more; its data in the destination stays.", table)
        )
    for candidate in candidates:
        record = site.store.tables().get(candidate.table)
        oid, member = candidate.match.relation.oid, declared.membership(candidate, publications)
        terms = declared.terms(candidate, publications, site.spec.destination.form)
        if record is None or (record.relation, record.membership, record.terms) != (oid, member, terms):
            site.store.register(candidate.table, oid, member, terms)


def _sweep(site: Site, connection: Connection) -> None:
    """What dead copies and dead groups left."""
    store = site.store
    roll_back_dead_copies(site)
    slots = group_slots(list_slots(connection, site.pipeline, site.instance))
    alive = {attempt for attempt, slot in slots.items() if slot.lost is None}
    lost = apply_judged(site, lambda states: upkeep.lost_groups(states, alive | store.live_attempts()))
    for table in lost:
        site.observer(
            Noted("warning", f"{written(table)} is copied again: nothing holds the changes since its copy.", table)
        )
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


# -- the apply slot ---------------------------------------------------------------------------------------------------


def _ensure_slot(site: Site, connection: Connection) -> None:
    """Made before the first table is copied. One that no table depends on yet, and that we did not confirm, is made
    anew; but not one that somebody else has made, or has come to depend on, since we looked."""
    if _slot_stands(site, connection):
        return
    with deciding(connection, site.apply_slot):
        site.store.load()
        if _slot_stands(site, connection):
            return
        if upkeep.apply_slot_needed(states_of(site.store)):
            message = f"Tables went on while the slot {site.apply_slot}, on which they depend, was found missing."
            raise PgetlError(ErrorKind.SLOT_IN_USE, message, remedy="Try again.")
        _make_slot(site, connection)


def _slot_stands(site: Site, connection: Connection) -> bool:
    slot, ceiling = find_slot(connection, site.apply_slot), site.store.progress(CEILING)
    return slot is not None and slot.lost is None and ceiling is not None and (slot.confirmed or START) <= ceiling


def _make_slot(site: Site, connection: Connection) -> None:
    drop_slot(connection, site.apply_slot, terminate=True)
    replication = site.connect_replication("prepare")
    try:
        made = create_slot(replication, connection, site.apply_slot, failover=site.spec.source.failover)
    finally:
        replication.finish()
    reach("prepare.slot_created")
    site.store.record_progress(CEILING, made.consistent_point)
