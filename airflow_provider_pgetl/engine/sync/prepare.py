"""Before anything runs: what is declared and what is there are brought together, or refused with the remedy.

In this order: whose the pipeline is, preflight of source and destination, tables of which something else is declared
than before, publication, gaps in history, tables, slots. Everything here may be done again at any time while no worker
runs, and changes nothing that is as it should be.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.failpoints import reach
from airflow_provider_pgetl.engine.findings import refuse
from airflow_provider_pgetl.engine.phases import Init
from airflow_provider_pgetl.engine.positions import START
from airflow_provider_pgetl.engine.reports import Noted
from airflow_provider_pgetl.engine.source import preflight
from airflow_provider_pgetl.engine.source.candidates import Candidate
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.publication import foresee_publication, prepare_publication
from airflow_provider_pgetl.engine.source.published import Publication
from airflow_provider_pgetl.engine.state.protocol import Registration, TableRecord
from airflow_provider_pgetl.engine.sync import declared, holding, upkeep
from airflow_provider_pgetl.engine.sync.abandoning import abandon_copies
from airflow_provider_pgetl.engine.sync.copying.job import CopyTable
from airflow_provider_pgetl.engine.sync.desk import CEILING, states_of
from airflow_provider_pgetl.engine.sync.events import apply_judged
from airflow_provider_pgetl.engine.sync.fitness import expect_fit
from airflow_provider_pgetl.engine.sync.gaps import Gaps
from airflow_provider_pgetl.engine.sync.owning import claim, expect_own
from airflow_provider_pgetl.engine.sync.site import Site
from airflow_provider_pgetl.engine.sync.slots_of_groups import group_slots
from airflow_provider_pgetl.engine.sync.source_server import SourceSession
from airflow_provider_pgetl.engine.sync.watching import fail_unlogged
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
    expect_own(site)
    with site.connect("prepare") as connection:
        session = site.over(connection)
        fail_unlogged(site, session)
        candidates = find_candidates(site, connection)
        expect_fit(site, connection, candidates)
        claim(site)
        expect_the_same_source(site, session, candidates)
        publications = _publish(site, connection, candidates)
        bring_together(site, session, candidates, publications, streaming=streaming)
    return Prepared(
        {one.table: copy_of(site, one) for one in candidates},
        {one.table: size_of(one) for one in candidates},
    )


def take_up(site: Site, table: TableName) -> None:
    """Follow the declaration, unless the table is known already."""
    with site.connect("take up") as connection, site.over(connection).deciding(site.apply_slot):
        expect_own(site)
        if table not in site.store.tables():
            _follow_declaration(site, connection)


def follow_declaration(site: Site) -> None:
    """Tables that were declared since the run was prepared are published and registered, in Init, for the streaming
    worker and the copies to find; those that were undeclared since go. May be done while a worker runs, which hears of
    both by the store: what it depends on, history and slots, is left for `prepare` to judge.
    """
    with site.connect("take up") as connection, site.over(connection).deciding(site.apply_slot):
        expect_own(site)
        _follow_declaration(site, connection)


def _follow_declaration(site: Site, connection: Connection) -> None:
    candidates = find_candidates(site, connection)
    expect_fit(site, connection, candidates)
    _forget_undeclared(site, candidates)
    publications = _publish(site, connection, candidates)
    known = site.store.tables()
    begin = [one for one in candidates if one.table not in known or isinstance(known[one.table].state.phase, Init)]
    _register(site, begin, publications)


def bring_together(
    site: Site,
    session: SourceSession,
    candidates: Sequence[Candidate],
    publications: Sequence[Publication],
    *,
    streaming: bool,
) -> None:
    """Of what is published, and what the store knows, everything but the declaration's own demands."""
    judge_gaps(site, session, candidates, publications, streaming=streaming).settle(session)
    _reconcile(site, candidates, publications)
    holding.watch(site)
    _sweep(site, session)
    if streaming:
        _ensure_slot(site, session)


def expect_the_same_source(site: Site, session: SourceSession, candidates: Sequence[Candidate]) -> None:
    """Before anything is made there, or a publication is put right that has left something out."""
    site.store.load()
    gaps = Gaps(site)
    gaps.judge_lineage(session)
    gaps.judge_options(session, candidates)
    gaps.reset()


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
    session: SourceSession,
    candidates: Sequence[Candidate],
    publications: Sequence[Publication],
    *,
    streaming: bool,
    anyway: Collection[TableName] = (),
) -> Gaps:
    """`anyway`: tables that are copied anew in any case."""
    gaps = Gaps(site, anyway)
    gaps.judge_lineage(session)
    gaps.judge_options(session, candidates)
    gaps.judge_tables(candidates, publications)
    if streaming:
        gaps.judge_destination()
        gaps.judge_slot(session)
    return gaps


def copy_of(site: Site, candidate: Candidate) -> CopyTable:
    match = candidate.match
    return CopyTable(match.table, match.destination, site.spec.replaces(match.spec))


def size_of(candidate: Candidate) -> int:
    return sum(one.leaf.size for one in candidate.leaves)


# -- tables -----------------------------------------------------------------------------------------------------------


def _reconcile(site: Site, candidates: Sequence[Candidate], publications: Sequence[Publication]) -> None:
    """New tables come in Init; those that were undeclared go."""
    _forget_undeclared(site, candidates)
    _register(site, candidates, publications)


def _forget_undeclared(site: Site, candidates: Sequence[Candidate]) -> None:
    """Their data in the destination stays."""
    gone = {*site.store.tables()} - {candidate.table for candidate in candidates}
    abandon_copies(site, [site.store.tables()[table] for table in gone])
    for table in gone:
        site.store.delete_table(table)
        site.observer(
            Noted("info", f"{written(table)} is not declared any more; its data in the destination stays.", table)
        )


def _register(site: Site, candidates: Sequence[Candidate], publications: Sequence[Publication]) -> None:
    form = site.spec.destination.form
    site.store.load()
    known = site.store.tables()
    now = {
        one.table: _as_copied(
            known.get(one.table),
            Registration(
                one.match.relation.oid,
                declared.membership(one, publications),
                declared.terms(one, publications, form),
            ),
        )
        for one in candidates
    }
    site.store.register_all({t: given for t, given in now.items() if t not in known or _differs(known[t], given)})


def _as_copied(record: TableRecord | None, given: Registration) -> Registration:
    """From the beginning of a copy on it is the copy that says which table it has read, and under which entry of the
    publication. What is there now may be another, which is to be found out."""
    if record is None or record.relation is None or isinstance(record.state.phase, Init):
        return given
    return replace(given, relation=record.relation, membership=record.membership)


def _differs(record: TableRecord, given: Registration) -> bool:
    return (record.relation, record.membership, record.terms) != (given.relation, given.membership, given.terms)


def _sweep(site: Site, session: SourceSession) -> None:
    """What dead copies and dead groups left."""
    store = site.store
    roll_back_dead_copies(site)
    slots = group_slots(session.list_slots())
    alive = {attempt for attempt, slot in slots.items() if slot.lost is None}
    lost = apply_judged(site, lambda states: upkeep.lost_groups(states, alive | store.live_attempts()))
    for table in lost:
        site.observer(
            Noted("warning", f"{written(table)} is copied again: nothing holds the changes since its copy.", table)
        )
    busy = store.live_attempts()
    store.load()
    for attempt in upkeep.slots_to_drop(states_of(store), slots, busy):
        session.drop_slot(slots[attempt].name, terminate=True)


def roll_back_dead_copies(site: Site) -> None:
    """A copy is dead whose attempt was not alive between two looks that found the table in its hands: it has neither
    begun nor ended meanwhile. For one of a process that is gone, nobody waits until its time has run out."""
    before = states_of(site.store)
    holders = site.store.attempt_holders()
    live = {attempt for attempt, holder in holders.items() if not site.runtime.is_gone(holder)}
    for attempt in holders.keys() - live:
        site.store.end_attempt(attempt)
    apply_judged(site, lambda states: upkeep.dead_copies({t: s for t, s in states.items() if before.get(t) == s}, live))


# -- the apply slot ---------------------------------------------------------------------------------------------------


def _ensure_slot(site: Site, session: SourceSession) -> None:
    """Made before the first table is copied. One that no table depends on yet, and that we did not confirm, is made
    anew; but not one that somebody else has made, or has come to depend on, since we looked."""
    if _slot_stands(site, session):
        return
    with session.deciding(site.apply_slot):
        site.store.load()
        if _slot_stands(site, session):
            return
        if upkeep.apply_slot_needed(states_of(site.store)):
            message = f"Tables went on while the slot {site.apply_slot}, on which they depend, was found missing."
            raise PgetlError(ErrorKind.SLOT_IN_USE, message, remedy="Try again.")
        _make_slot(site, session)


def _slot_stands(site: Site, session: SourceSession) -> bool:
    slot, ceiling = session.find_slot(site.apply_slot), site.store.progress(CEILING)
    return slot is not None and slot.lost is None and ceiling is not None and (slot.confirmed or START) <= ceiling


def _make_slot(site: Site, session: SourceSession) -> None:
    session.drop_slot(site.apply_slot, terminate=True)
    made = session.create_slot(site.apply_slot, failover=site.spec.source.failover)
    reach("prepare.slot_created")
    site.store.record_progress(CEILING, made.consistent_point)
