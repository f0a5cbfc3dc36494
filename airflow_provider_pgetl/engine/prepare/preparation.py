"""Preparation before a run: source, store and destination are made to match the declaration, or an error names the
remedy.

The order of the checks is: the owner of the pipeline, preflight of source and destination, tables whose declaration has
changed, the publication, gaps in history, tables, slots. Everything here may be repeated at any time while no worker
runs, and changes nothing that is already as it should be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_pgetl.engine.config.jobs import CopyTable
from airflow_provider_pgetl.engine.context import PipelineContext, SourceSession, apply_judged
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Finding, PgetlError, errors_of, refuse
from airflow_provider_pgetl.engine.model.phases import Init
from airflow_provider_pgetl.engine.model.positions import START
from airflow_provider_pgetl.engine.model.reports import Noted
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.engine.prepare import destination_checks, gaps
from airflow_provider_pgetl.engine.prepare.destination_checks import (
    expect_fit,
    inspect,
    inspect_foreign_rows,
    inspect_identity,
    inspect_names,
    inspect_table,
)
from airflow_provider_pgetl.engine.prepare.gaps import Gaps, discard_copies
from airflow_provider_pgetl.engine.prepare.lifecycle import claim, expect_own, is_paused
from airflow_provider_pgetl.engine.prepare.source_watch import fail_unlogged
from airflow_provider_pgetl.engine.prepare.transform_checks import inspect_rules
from airflow_provider_pgetl.engine.runtime.processes import reach
from airflow_provider_pgetl.engine.source import preflight
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.matching import Candidate
from airflow_provider_pgetl.engine.source.publication import foresee_publication, prepare_publication
from airflow_provider_pgetl.engine.source.published import Publication
from airflow_provider_pgetl.engine.source.server import flushed_position
from airflow_provider_pgetl.engine.source.slots import group_slots, list_unused
from airflow_provider_pgetl.engine.state import decisions
from airflow_provider_pgetl.engine.state.decisions import CEILING, states_of
from airflow_provider_pgetl.engine.state.store import Registration, TableRecord


@dataclass(frozen=True, slots=True)
class Prepared:
    """The declared tables: the copy that each needs, and its size in bytes."""

    copies: Mapping[TableName, CopyTable]
    sizes: Mapping[TableName, int]


def find_candidates(context: PipelineContext, connection: Connection) -> tuple[Candidate, ...]:
    """Returns the declared tables as the source has them. Raises if the source is not fit for them."""
    refuse(preflight.check(connection, context.spec, context.instance))
    survey = preflight.survey(connection, context.spec)
    refuse(survey.matching.findings)  # once more: a table may have been dropped since the check
    _expect_rules(context, inspect_rules(context, connection, survey.candidates))
    return survey.candidates


def _expect_rules(context: PipelineContext, findings: Sequence[Finding]) -> None:
    refuse(findings)
    for finding in findings:
        context.observer(Noted("warning", f"{finding.problem} {finding.remedy}"))


def prepare(context: PipelineContext, *, streaming: bool) -> Prepared:
    """Prepares the pipeline. With `streaming`, also creates the apply slot if it is missing."""
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
    """Follows the declaration, unless the table is registered already."""
    with context.connect("take up") as connection, context.over(connection).deciding(context.apply_slot):
        expect_own(context)
        if table not in context.store.tables():
            _follow_declaration(context, connection)


def follow_declaration(context: PipelineContext) -> None:
    """Publishes and registers, in Init, tables that were declared since the run was prepared, for the streaming worker
    and the copies to find; unregisters tables that are no longer declared.

    May be called while a worker runs, which learns of both from the store. What the worker depends on, history and
    slots, is left to `prepare`.
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
    """Settles gaps, registers tables, checks the destination's tables and drops unneeded slots; with `streaming`,
    ensures the apply slot. The declaration itself has already been checked, and the tables are published."""
    judge_gaps(context, session, candidates, publications, streaming=streaming).settle(session)
    _reconcile(context, candidates, publications)
    destination_checks.watch(context)
    _clean_up(context, session)
    if streaming:
        _ensure_slot(context, session)


def expect_the_same_source(context: PipelineContext, session: SourceSession, candidates: Sequence[Candidate]) -> None:
    """Checks that the source is the same as before, and that its publications have left nothing out. It runs before
    anything is created at the source and before a publication that has left something out is corrected."""
    context.store.load()
    gaps = Gaps(context)
    gaps.judge_lineage(session)
    gaps.judge_options(session, candidates)
    gaps.reset()


def _publish(
    context: PipelineContext, connection: Connection, candidates: Sequence[Candidate]
) -> tuple[Publication, ...]:
    """Publishes the tables. Tables whose declaration has changed are reset before anything else is published of them:
    even if the process dies in between, and whatever the declaration says by then, no table goes on with rows that were
    selected otherwise. The check is repeated afterwards, because others may have changed a publication that pgetl does
    not manage."""
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
    gaps.copy_anew(context, gaps.changed(context, candidates, publications))


def judge_gaps(
    context: PipelineContext,
    session: SourceSession,
    candidates: Sequence[Candidate],
    publications: Sequence[Publication],
    *,
    streaming: bool,
    anyway: Collection[TableName] = (),
) -> Gaps:
    """Returns the gaps in history. `anyway`: tables that are copied again in any case."""
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
    """Registers new tables in Init; unregisters tables that are no longer declared."""
    _forget_undeclared(context, candidates)
    _register(context, candidates, publications)


def _forget_undeclared(context: PipelineContext, candidates: Sequence[Candidate]) -> None:
    """Unregisters tables that are no longer declared. Their data in the destination remains."""
    gone = {*context.store.tables()} - {candidate.table for candidate in candidates}
    discard_copies(context, [context.store.tables()[table] for table in gone])
    for table in gone:
        context.store.delete_table(table)
        context.observer(
            Noted("info", f"{written(table)} is not declared any more; its data in the destination stays.", table)
        )


def _register(context: PipelineContext, candidates: Sequence[Candidate], publications: Sequence[Publication]) -> None:
    context.store.load()
    known = context.store.tables()
    now = {
        one.table: _as_copied(
            known.get(one.table),
            Registration(
                one.match.relation.oid,
                gaps.membership(one, publications),
                gaps.copied_selection(context, one, publications),
            ),
        )
        for one in candidates
    }
    context.store.register_all({t: given for t, given in now.items() if t not in known or _differs(known[t], given)})


def _as_copied(record: TableRecord | None, given: Registration) -> Registration:
    """Returns the registration to store. Once a copy has begun, the copy determines which relation it has read, and
    under which membership of the publication: what the source has now may be another relation, and that difference must
    remain detectable."""
    if record is None or record.relation is None or isinstance(record.state.phase, Init):
        return given
    return replace(given, relation=record.relation, membership=record.membership)


def _differs(record: TableRecord, given: Registration) -> bool:
    return (record.relation, record.membership, record.selection) != (given.relation, given.membership, given.selection)


def _clean_up(context: PipelineContext, session: SourceSession) -> None:
    """Cleans up after dead copies and lost groups, and drops the slots that no table needs."""
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
    """Rolls back the tables of dead copies. A copy is dead if its attempt was not alive between two reads of the store
    that found the table in the same state, so that the attempt has neither begun nor ended meanwhile. An attempt of a
    process that no longer exists ends at once, without waiting for its expiry."""
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
    """Creates the apply slot before the first table is copied. A slot that no table depends on yet, and that pgetl did
    not confirm, is created again; but not if another process has created it, or tables have come to depend on it, since
    it was first read."""
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


# -- What `check` examines: the same things, in the same order, that `run` would refuse. Nothing is changed. -----------
#
# A server that cannot be reached is a finding like any other, so that one problem does not hide others elsewhere.


def look(context: PipelineContext) -> list[Finding]:
    """Returns the findings of owner, source and destination and, for a pipeline that has run before, the gaps in its
    history."""
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
    """Runs the preflight of the source. Also opens a replication session, which a connection pooler may refuse while it
    otherwise behaves like a server; and reports what deleted pipelines have left at the source, which prevents nothing
    but fills the disk."""
    with context.connect("check") as connection:
        found = preflight.check(connection, context.spec, context.instance)
        found += preflight.judge_unused(
            list_unused(connection), context.store.instances(), flushed_position(connection)
        )
        if not errors_of(found):
            found += inspect_rules(context, connection, preflight.survey(connection, context.spec).candidates)
    if not errors_of(found):
        context.connect_replication("check").finish()
    return found


def _look_at_destination(context: PipelineContext) -> list[Finding]:
    with context.destination("check") as destination:
        return inspect(destination)


def _look_at_tables(context: PipelineContext) -> list[Finding]:
    """Examines the tables that exist in the destination: whose rows they hold, and whether they accept what the source
    would send."""
    with context.connect("check") as connection:
        candidates = preflight.survey(connection, context.spec).candidates
        schemas = preflight.declared_schemas(connection, context.spec, candidates)
        with context.destination("check") as destination:
            found = inspect_identity(connection, destination, candidates)
            found = found or inspect_names(destination, candidates)
            return found or inspect_foreign_rows(context, destination, candidates) + [
                replace(finding, table=str(one.table))
                for one in candidates
                for finding in inspect_table(destination, replace(schemas[one.table], table=one.match.destination))
            ]


def _look_for_gaps(context: PipelineContext) -> list[Finding]:
    """Returns which tables will be copied again, and which changes may be missing from the others."""
    with context.connect("check") as connection:
        candidates = preflight.survey(connection, context.spec).candidates
        publications = foresee_publication(connection, context.spec, context.instance, candidates)
        anew = gaps.changed(context, candidates, publications)
        gap = judge_gaps(
            context, context.over(connection), candidates, publications, streaming=True, anyway=anew
        ).finding()
    return gaps.declaration_findings(anew) + ([] if gap is None else [gap])
