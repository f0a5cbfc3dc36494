"""Before anything runs: what is declared and what is there are brought together, or refused with the remedy.

In this order: whose the pipeline is, preflight of source and destination, tables of which something else is declared
than before, publication, gaps in history, tables, slots. Everything here may be done again at any time while no worker
runs, and changes nothing that is as it should be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from airflow_provider_pgetl.engine.config.jobs import CopyTable
from airflow_provider_pgetl.engine.config.spec import DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.context import PipelineContext, SourceSession, apply_judged
from airflow_provider_pgetl.engine.destinations.protocol import Destination
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.findings import Finding, errors_of, refuse
from airflow_provider_pgetl.engine.model.phases import Init
from airflow_provider_pgetl.engine.model.positions import START
from airflow_provider_pgetl.engine.model.reports import Noted
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.engine.prepare import declared, destination_checks
from airflow_provider_pgetl.engine.prepare.declared import discard_copies
from airflow_provider_pgetl.engine.prepare.destination_checks import (
    expect_fit,
    inspect,
    inspect_identity,
    inspect_names,
    inspect_room,
    inspect_table,
)
from airflow_provider_pgetl.engine.prepare.gaps import Gaps
from airflow_provider_pgetl.engine.prepare.owners import claim, expect_own
from airflow_provider_pgetl.engine.prepare.pausing import is_paused
from airflow_provider_pgetl.engine.prepare.source_watch import fail_unlogged
from airflow_provider_pgetl.engine.runtime.failpoints import reach
from airflow_provider_pgetl.engine.source import preflight
from airflow_provider_pgetl.engine.source.connecting import Connection, connect, connect_replication, worker_name
from airflow_provider_pgetl.engine.source.matching import Candidate
from airflow_provider_pgetl.engine.source.publication import foresee_publication, prepare_publication
from airflow_provider_pgetl.engine.source.published import Publication
from airflow_provider_pgetl.engine.source.server import ServerFacts, flushed_position, read_server
from airflow_provider_pgetl.engine.source.slots import group_slots, list_unused
from airflow_provider_pgetl.engine.state import decisions
from airflow_provider_pgetl.engine.state.decisions import CEILING, states_of
from airflow_provider_pgetl.engine.state.protocol import Registration, TableRecord


@dataclass(frozen=True, slots=True)
class Prepared:
    """The declared tables: what a copy of each is asked to do, and how large it is."""

    copies: Mapping[TableName, CopyTable]
    sizes: Mapping[TableName, int]


def find_candidates(context: PipelineContext, connection: Connection) -> tuple[Candidate, ...]:
    """The tables that are declared, as the source has them; refused where the source is not fit for them."""
    refuse(preflight.check(connection, context.spec, context.instance))
    survey = preflight.survey(connection, context.spec)
    refuse(survey.matching.findings)  # once more: what was there a moment ago may have been dropped
    return survey.candidates


def prepare(context: PipelineContext, *, streaming: bool) -> Prepared:
    """`streaming`: make sure of the apply slot as well."""
    expect_own(context)
    with context.connect("prepare") as connection:
        session = context.over(connection)
        fail_unlogged(context, session)
        candidates = find_candidates(context, connection)
        expect_fit(context, connection, candidates)
        claim(context)
        expect_the_same_source(context, session, candidates)
        publications = _publish(context, connection, candidates)
        bring_together(context, session, candidates, publications, streaming=streaming)
    return Prepared(
        {one.table: copy_of(context, one) for one in candidates},
        {one.table: size_of(one) for one in candidates},
    )


def take_up(context: PipelineContext, table: TableName) -> None:
    """Follow the declaration, unless the table is known already."""
    with context.connect("take up") as connection, context.over(connection).deciding(context.apply_slot):
        expect_own(context)
        if table not in context.store.tables():
            _follow_declaration(context, connection)


def follow_declaration(context: PipelineContext) -> None:
    """Tables that were declared since the run was prepared are published and registered, in Init, for the streaming
    worker and the copies to find; those that were undeclared since go. May be done while a worker runs, which hears of
    both by the store: what it depends on, history and slots, is left for `prepare` to judge.
    """
    with context.connect("take up") as connection, context.over(connection).deciding(context.apply_slot):
        expect_own(context)
        _follow_declaration(context, connection)


def _follow_declaration(context: PipelineContext, connection: Connection) -> None:
    candidates = find_candidates(context, connection)
    expect_fit(context, connection, candidates)
    _forget_undeclared(context, candidates)
    publications = _publish(context, connection, candidates)
    known = context.store.tables()
    begin = [one for one in candidates if one.table not in known or isinstance(known[one.table].state.phase, Init)]
    _register(context, begin, publications)


def bring_together(
    context: PipelineContext,
    session: SourceSession,
    candidates: Sequence[Candidate],
    publications: Sequence[Publication],
    *,
    streaming: bool,
) -> None:
    """Of what is published, and what the store knows, everything but the declaration's own demands."""
    judge_gaps(context, session, candidates, publications, streaming=streaming).settle(session)
    _reconcile(context, candidates, publications)
    destination_checks.watch(context)
    _sweep(context, session)
    if streaming:
        _ensure_slot(context, session)


def expect_the_same_source(context: PipelineContext, session: SourceSession, candidates: Sequence[Candidate]) -> None:
    """Before anything is made there, or a publication is put right that has left something out."""
    context.store.load()
    gaps = Gaps(context)
    gaps.judge_lineage(session)
    gaps.judge_options(session, candidates)
    gaps.reset()


def _publish(
    context: PipelineContext, connection: Connection, candidates: Sequence[Candidate]
) -> tuple[Publication, ...]:
    """Tables of which something else is wanted are reset before anything else is published of them: whoever dies in
    between, and whatever the declaration says by then, no table goes on with rows that were chosen otherwise. And once
    more after that, as others may have changed a publication that is not ours."""
    _copy_changed_anew(context, candidates, foresee_publication(connection, context.spec, context.instance, candidates))
    reach("prepare.reset")
    publications = prepare_publication(connection, context.spec, context.instance, candidates)
    reach("prepare.published")
    _copy_changed_anew(context, candidates, publications)
    return publications


def _copy_changed_anew(
    context: PipelineContext, candidates: Sequence[Candidate], publications: Sequence[Publication]
) -> None:
    context.store.load()
    declared.copy_anew(context, declared.changed(context, candidates, publications))


def judge_gaps(
    context: PipelineContext,
    session: SourceSession,
    candidates: Sequence[Candidate],
    publications: Sequence[Publication],
    *,
    streaming: bool,
    anyway: Collection[TableName] = (),
) -> Gaps:
    """`anyway`: tables that are copied anew in any case."""
    gaps = Gaps(context, anyway)
    gaps.judge_lineage(session)
    gaps.judge_options(session, candidates)
    gaps.judge_tables(candidates, publications)
    if streaming:
        gaps.judge_destination()
        gaps.judge_slot(session)
    return gaps


def copy_of(context: PipelineContext, candidate: Candidate) -> CopyTable:
    match = candidate.match
    return CopyTable(match.table, match.destination, context.spec.replaces(match.spec))


def size_of(candidate: Candidate) -> int:
    return sum(one.leaf.size for one in candidate.leaves)


# -- tables -----------------------------------------------------------------------------------------------------------


def _reconcile(context: PipelineContext, candidates: Sequence[Candidate], publications: Sequence[Publication]) -> None:
    """New tables come in Init; those that were undeclared go."""
    _forget_undeclared(context, candidates)
    _register(context, candidates, publications)


def _forget_undeclared(context: PipelineContext, candidates: Sequence[Candidate]) -> None:
    """Their data in the destination stays."""
    gone = {*context.store.tables()} - {candidate.table for candidate in candidates}
    discard_copies(context, [context.store.tables()[table] for table in gone])
    for table in gone:
        context.store.delete_table(table)
        context.observer(
            Noted("info", f"{written(table)} is not declared any more; its data in the destination stays.", table)
        )


def _register(context: PipelineContext, candidates: Sequence[Candidate], publications: Sequence[Publication]) -> None:
    form = context.spec.destination.form
    context.store.load()
    known = context.store.tables()
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
    context.store.register_all({t: given for t, given in now.items() if t not in known or _differs(known[t], given)})


def _as_copied(record: TableRecord | None, given: Registration) -> Registration:
    """From the beginning of a copy on it is the copy that says which table it has read, and under which entry of the
    publication. What is there now may be another, which is to be found out."""
    if record is None or record.relation is None or isinstance(record.state.phase, Init):
        return given
    return replace(given, relation=record.relation, membership=record.membership)


def _differs(record: TableRecord, given: Registration) -> bool:
    return (record.relation, record.membership, record.terms) != (given.relation, given.membership, given.terms)


def _sweep(context: PipelineContext, session: SourceSession) -> None:
    """What dead copies and dead groups left."""
    store = context.store
    roll_back_dead_copies(context)
    slots = group_slots(session.list_slots())
    alive = {attempt for attempt, slot in slots.items() if slot.lost is None}
    lost = apply_judged(context, lambda states: decisions.lost_groups(states, alive | store.live_attempts()))
    for table in lost:
        context.observer(
            Noted("warning", f"{written(table)} is copied again: nothing holds the changes since its copy.", table)
        )
    busy = store.live_attempts()
    store.load()
    for attempt in decisions.slots_to_drop(states_of(store), slots, busy):
        session.drop_slot(slots[attempt].name, terminate=True)


def roll_back_dead_copies(context: PipelineContext) -> None:
    """A copy is dead whose attempt was not alive between two looks that found the table in its hands: it has neither
    begun nor ended meanwhile. For one of a process that is gone, nobody waits until its time has run out."""
    before = states_of(context.store)
    holders = context.store.attempt_holders()
    live = {attempt for attempt, holder in holders.items() if not context.runtime.is_gone(holder)}
    for attempt in holders.keys() - live:
        context.store.end_attempt(attempt)
    apply_judged(
        context, lambda states: decisions.dead_copies({t: s for t, s in states.items() if before.get(t) == s}, live)
    )


# -- the apply slot ---------------------------------------------------------------------------------------------------


def _ensure_slot(context: PipelineContext, session: SourceSession) -> None:
    """Made before the first table is copied. One that no table depends on yet, and that we did not confirm, is made
    anew; but not one that somebody else has made, or has come to depend on, since we looked."""
    if _slot_stands(context, session):
        return
    with session.deciding(context.apply_slot):
        context.store.load()
        if _slot_stands(context, session):
            return
        if decisions.apply_slot_needed(states_of(context.store)):
            message = f"Tables went on while the slot {context.apply_slot}, on which they depend, was found missing."
            raise PgetlError(ErrorKind.SLOT_IN_USE, message, remedy="Try again.")
        _make_slot(context, session)


def _slot_stands(context: PipelineContext, session: SourceSession) -> bool:
    slot, ceiling = session.find_slot(context.apply_slot), context.store.progress(CEILING)
    return slot is not None and slot.lost is None and ceiling is not None and (slot.confirmed or START) <= ceiling


def _make_slot(context: PipelineContext, session: SourceSession) -> None:
    session.drop_slot(context.apply_slot, terminate=True)
    made = session.create_slot(context.apply_slot, failover=context.spec.source.failover)
    reach("prepare.slot_created")
    context.store.record_progress(CEILING, made.consistent_point)


# -- What `check` looks at: the same things, in the same order, that `run` would refuse, and nothing is changed. -------
#
# A server that cannot be reached is a finding like any other, so that one mistake does not hide what is wrong
# elsewhere.

# A pipeline that asks no more of a source than any must.
_ANY = PipelineSpec(
    "any",
    (TableSpec("any.table"),),
    SourceSpec("env:SOURCE", manage_publication=False),
    DestinationSpec("memory"),
    state_uri="env:STATE",
)


def look_at_server(uri: str) -> tuple[ServerFacts | None, list[Finding]]:
    """What would keep every pipeline from this source, whatever its tables: the version, settings, free slots and WAL
    senders, the role, a replication session that is not to be had. The facts are None if it cannot be reached."""
    facts, name = None, worker_name("any", "check")
    try:
        with connect(uri, name) as connection:
            facts = read_server(connection, _ANY.id)
            encoding = connection.info.parameter_status("server_encoding") or "UTF8"
        found = [*preflight.judge_server(facts, _ANY), *preflight.judge_encoding(encoding)]
        if not errors_of(found):
            connect_replication(uri, name).finish()
    except PgetlError as error:
        return facts, [Finding.of(error)]
    return facts, found


def look(context: PipelineContext) -> list[Finding]:
    """Owner, source, destination, and, of a pipeline that has run before, whether its history has gaps."""
    found = [*_answered(_look_at_owner, context), *_answered(_look_at_source, context)]
    found += _answered(_look_at_destination, context)
    if errors_of(found):
        return found
    found += _answered(_look_at_tables, context)
    if context.store.pipeline().lineage is not None:
        found += _answered(_look_for_gaps, context)
        found += _answered(destination_checks.findings, context)
    return found


def _answered(look_at: Callable[[PipelineContext], list[Finding]], context: PipelineContext) -> list[Finding]:
    try:
        return look_at(context)
    except PgetlError as error:
        return [Finding.of(error)]


def _look_at_owner(context: PipelineContext) -> list[Finding]:
    expect_own(context)
    return [_paused()] if is_paused(context.store) else []


def _paused() -> Finding:
    problem = "The pipeline is paused."
    return Finding(problem, "`pgetl resume FILE` has it go on.", "note")


def _look_at_source(context: PipelineContext) -> list[Finding]:
    """Also whether a replication session is to be had, which a pooler may refuse that else is like a server; and what
    is left there of pipelines that are no more, which stands in nobody's way, but fills the disk."""
    with context.connect("check") as connection:
        found = preflight.check(connection, context.spec, context.instance)
        found += preflight.judge_unused(
            list_unused(connection), context.store.instances(), flushed_position(connection)
        )
    if not errors_of(found):
        context.connect_replication("check").finish()
    return found


def _look_at_destination(context: PipelineContext) -> list[Finding]:
    with _opened(context) as destination:
        return inspect(destination)


@contextmanager
def _opened(context: PipelineContext) -> Iterator[Destination]:
    destination = context.open_destination("check")
    try:
        yield destination
    finally:
        destination.shutdown()


def _look_at_tables(context: PipelineContext) -> list[Finding]:
    """Those that are there in the destination: whose they are, and whether they take what the source would send."""
    with context.connect("check") as connection:
        candidates = preflight.survey(connection, context.spec).candidates
        schemas = preflight.declared_schemas(connection, context.spec, candidates)
        with _opened(context) as destination:
            found = inspect_identity(connection, destination, candidates)
            found = found or inspect_names(destination, candidates)
            return found or inspect_room(context, destination, candidates) + [
                replace(finding, table=str(one.table))
                for one in candidates
                for finding in inspect_table(destination, replace(schemas[one.table], table=one.match.destination))
            ]


def _look_for_gaps(context: PipelineContext) -> list[Finding]:
    """What is to be copied anew, and what changes may be missing of the rest."""
    with context.connect("check") as connection:
        candidates = preflight.survey(connection, context.spec).candidates
        publications = foresee_publication(connection, context.spec, context.instance, candidates)
        anew = declared.changed(context, candidates, publications)
        gap = judge_gaps(
            context, context.over(connection), candidates, publications, streaming=True, anyway=anew
        ).finding()
    return declared.findings(anew) + ([] if gap is None else [gap])
