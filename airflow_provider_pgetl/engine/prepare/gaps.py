"""Reasons to copy a table again: gaps in its history, and a declaration that has changed.

A gap in history: a table depends on something that has changed, so that changes may be missing. If tables are past Init
but the cluster, the database, the publication, the table itself, the apply slot or the destination's positions have
changed identity, it is not known what happened in between. A gap is never bridged silently: by `on_slot_lost`, the
pipeline is refused, or the tables concerned are reset and copied again.

The `judge_…` methods change nothing; `settle` acts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from airflow_provider_pgetl.engine.changes.batch import TablePosition, Target
from airflow_provider_pgetl.engine.context import PipelineContext, SourceSession, apply_each
from airflow_provider_pgetl.engine.destinations.protocol import AtomicCopy, Positions
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Finding, PgetlError
from airflow_provider_pgetl.engine.model.phases import (
    CATCHING_UP,
    FOLLOWED,
    DataSync,
    Init,
    Reset,
    needs_group_slot,
    past_init,
    phase_name,
)
from airflow_provider_pgetl.engine.model.positions import START, Boundary, Lineage
from airflow_provider_pgetl.engine.model.reports import Noted
from airflow_provider_pgetl.engine.model.tables import CopiedSelection, TableName, written
from airflow_provider_pgetl.engine.source.matching import Candidate
from airflow_provider_pgetl.engine.source.published import Publication, Share
from airflow_provider_pgetl.engine.source.publishing_rules import left_out, may_have_left_out
from airflow_provider_pgetl.engine.source.server import Present
from airflow_provider_pgetl.engine.source.slots import Slot, group_slots
from airflow_provider_pgetl.engine.state.decisions import CEILING, LATEST, furthest_seen
from airflow_provider_pgetl.engine.state.store import Store, TableRecord
from airflow_provider_pgetl.engine.transform.rules import uses_of
from airflow_provider_pgetl.engine.transform.tables import fingerprint_of

# -- Compares what is declared for each table now with the selection under which it was copied. ------------------------
#
# A change of a table's `columns`, `where`, `insert_only` or `destination`, or of the form that the destination gives
# all tables, is a request for different data. That is no gap in history: only these tables are copied again, and the
# others go on.
#
# A table's membership of a publication is never changed in place: the table is removed and added again, as a new
# pg_publication_rel row. So while the membership is the same, columns and filter are too, however the server spells
# them now (a column may have been renamed). A new membership with the old selection was not made by pgetl, and changes
# may be missing: that is a gap in history.

# -- Copies that no attempt will continue, because their table goes elsewhere or is no longer declared. ----------------
#
# The next attempt at a table removes what earlier attempts staged; here there is no next attempt, at least not in that
# place.


def discard_copies(context: PipelineContext, records: Iterable[TableRecord]) -> None:
    """Removes what running copies have staged of these tables, and fences copies that are still alive. Must be called
    while the store still has the tables."""
    begun = [record for record in records if isinstance(record.state.phase, DataSync)]
    if not begun:
        return
    with context.destination("prepare") as destination:
        for record in begun:
            target, attempt = _target(context, record), record.state.attempt
            if target is not None and attempt is not None and isinstance(destination, AtomicCopy):
                destination.abort_copy(target, attempt)


def _target(context: PipelineContext, record: TableRecord) -> Target | None:
    """Returns the target of the table's copy; None if the copy had not progressed that far."""
    place = context.store.destination_metadata(record.table)
    versions = context.store.schemas().get(record.table)
    if place is None or not versions:
        return None
    return Target(context.pipeline, replace(versions[max(versions)], table=place.destination), record.state.generation)


# -- What is compared --------------------------------------------------------------------------------------------------

Reasons = Mapping[TableName, str]
"""The tables that are to be copied again, each with the reason."""


def membership(candidate: Candidate, publications: Sequence[Publication]) -> int | None:
    """Returns the OID of the table's pg_publication_rel row, in whichever publication of the pipeline it is."""
    share = _share(candidate, publications)
    return None if share is None else share.membership


def copied_selection(
    context: PipelineContext, candidate: Candidate, publications: Sequence[Publication]
) -> CopiedSelection:
    """Returns the selection under which the table would be copied now."""
    share, match = _share(candidate, publications), candidate.match
    columns, where = (None, None) if share is None else (share.names, share.row_filter)
    form, transform = context.spec.destination.form, fingerprint_of(context.transforms, match.table)
    uses, spec = uses_of(context.ruled_spec, match.table), match.spec
    return CopiedSelection(columns, where, spec.insert_only, match.destination, form, transform, uses, spec.policy)


def _share(candidate: Candidate, publications: Sequence[Publication]) -> Share | None:
    shares = (one.share(candidate.match.relation.oid, candidate.access.namespace) for one in publications)
    return next((share for share in shares if share is not None), None)


def changed(context: PipelineContext, candidates: Iterable[Candidate], publications: Sequence[Publication]) -> Reasons:
    """Returns the tables whose declaration differs from the selection under which they were copied, each with the
    reason."""
    store = context.store
    found = {}
    for candidate in candidates:
        record = store.tables().get(candidate.table)
        before = None if record is None or isinstance(record.state.phase, Init) else _as_copied(store, record)
        if record is None or before is None:
            continue
        now = copied_selection(context, candidate, publications)
        if record.membership == membership(candidate, publications):
            now = replace(now, columns=before.columns, where=before.where)
        if keys := before.differences(now):
            found[candidate.table] = _why(keys, before, now)
    return found


def _as_copied(store: Store, record: TableRecord) -> CopiedSelection | None:
    """Returns the selection under which the table was copied. Once a copy exists, its destination is taken from the
    destination metadata."""
    place = store.destination_metadata(record.table)
    if record.selection is None or place is None or not past_init(record.state):
        return record.selection
    return replace(record.selection, destination=place.destination)


def _why(keys: Sequence[str], before: CopiedSelection, now: CopiedSelection) -> str:
    words = f"{' and '.join(f'`{key}`' for key in keys)} of it changed"
    if before.destination == now.destination:
        return words
    return f"{words}; it goes to {now.destination}, and {before.destination} stays as it is"


def declaration_findings(reasons: Reasons) -> list[Finding]:
    remedy = "Nothing has to be done; the other tables go on."
    return [
        Finding(f"{table} will be copied anew: {why}.", remedy, "warning", table=str(table))
        for table, why in reasons.items()
    ]


def copy_anew(context: PipelineContext, reasons: Reasons) -> None:
    """Resets these tables, and reports it."""
    records = context.store.tables()
    for table, why in reasons.items():
        context.observer(Noted("info", f"{table} is copied anew: {why}.", table))
    apply_each(context, {table: Reset(records[table].state.generation) for table in reasons})
    discard_copies(context, [records[table] for table in reasons])


# -- Gaps in history ---------------------------------------------------------------------------------------------------

_REMEDY = (
    "If this is the right source and destination, copy the tables again: `pgetl reset FILE TABLE` for each, "
    'or set on_slot_lost = "resync".'
)


class Gaps:
    """Collects the tables that no longer have a continuous history."""

    def __init__(self, context: PipelineContext, anyway: Collection[TableName] = ()) -> None:
        """`anyway`: tables that are copied again in any case."""
        self._context = context
        self._records = {table: record for table, record in context.store.tables().items() if table not in anyway}
        self._lost: dict[TableName, str] = {}
        self._present: Present | None = None
        self._found: Mapping[TableName, TablePosition] | None = None
        self._set_back: Lineage | None = None
        self._slot_void = False

    # -- judging ------------------------------------------------------------------------------------------------------

    def judge_lineage(self, session: SourceSession) -> None:
        why = self._wrong_with_lineage(session)
        if why is not None:
            self._slot_void = True
            self._lose(self._past_init(), why)

    def _wrong_with_lineage(self, session: SourceSession) -> str | None:
        """Returns why the present source is not the one that the pipeline has followed; None if it is. The recorded
        positions are read before the source is: a running worker advances both meanwhile, and the end of the WAL is
        never behind."""
        self._found = self._positions()
        recorded, furthest = self._context.store.pipeline().lineage, self._furthest
        self._present = session.lineage(self._context.spec.publication)
        if recorded is None:
            return None
        slot = session.find_slot(self._context.apply_slot)
        confirmed = START if slot is None else slot.confirmed or START
        why = self._present.difference(recorded, furthest, confirmed)
        self._set_back = replace(recorded, ended=why) if self._present.is_set_back(recorded, furthest) else None
        return why

    @property
    def _furthest(self) -> Boundary:
        """The furthest position that was seen, including the destination's positions: a worker that wrote there may
        have died before it recorded that in the store."""
        found, records = self._found or {}, self._context.store.tables()
        copied = [place for table, place in self._places().items() if past_init(records[table].state)]
        return max([furthest_seen(self._context.store), *(found[place].position for place in copied if place in found)])

    def _places(self) -> dict[TableName, TableName]:
        """Returns the names of the tables in the destination, as the store has them."""
        places = {table: self._context.store.destination_metadata(table) for table in self._context.store.tables()}
        return {table: place.destination for table, place in places.items() if place is not None}

    def _positions(self) -> Mapping[TableName, TablePosition] | None:
        """Returns the positions of the tables in the destination; None if the destination does not record positions.
        Must be called after the table's recorded positions were read: the destination can then only be ahead of
        them."""
        with self._context.destination("prepare") as destination:
            return destination.positions(self._context.pipeline) if isinstance(destination, Positions) else None

    def _lost_in_destination(self) -> Collection[TableName]:
        with self._context.destination("prepare") as destination:
            return destination.lost(self._context.pipeline) if isinstance(destination, Positions) else ()

    def judge_tables(self, candidates: Iterable[Candidate], publications: Sequence[Publication]) -> None:
        for candidate in candidates:
            record = self._records.get(candidate.table)
            if record is None or record.relation is None or not past_init(record.state):
                continue
            if record.relation != candidate.match.relation.oid:
                self._lose([candidate.table], "it was dropped and created again at the source")
            elif record.membership != membership(candidate, publications):
                self._lose([candidate.table], "it was taken out of the publication")

    def judge_options(self, session: SourceSession, candidates: Iterable[Candidate]) -> None:
        """Judges the options of the publications. Changes that a publication was set to leave out are missing from then
        on, even if it sends such changes again. Must be called before the publication is corrected. It uses the
        selection under which a table was copied, because the currently declared one may not be in effect yet."""
        settings = self._context.spec.source
        publications = session.publications(self._context.publications)
        for candidate in candidates:
            record = self._records.get(candidate.table)
            if record is None or not past_init(record.state):
                continue
            insert_only = not candidate.key_needed if record.selection is None else record.selection.insert_only
            partitioned, truncates = candidate.partitioned, settings.manage_publication
            copied = self._context.store.schema(candidate.table, LATEST)
            relation, namespace = candidate.match.relation.oid, candidate.access.namespace
            senders = (one for one in publications if one.share(relation, namespace) is not None)
            if sender := next(senders, None):  # whatever another publication leaves out, this one sends
                why = left_out(sender, insert_only=insert_only, partitioned=partitioned, truncates=truncates)
                why = why or may_have_left_out(sender, copied)
                if why is not None:
                    self._lose([candidate.table], why)

    def judge_destination(self) -> None:
        """Tables that were copied must be in the destination at or after the position where they were last seen. Tables
        that no longer exist there, or belong to another pipeline by now, are reported by `destination_checks`."""
        found = self._found
        if found is None:
            return
        places = self._places()
        seen = {t: places[t] for t, record in self._records.items() if t in places and _was_seen(record)}
        missing = [table for table, destination in seen.items() if destination not in found]
        told = self._lost_in_destination() if missing else ()
        self._lose([table for table in missing if seen[table] not in told], "the destination does not know it any more")
        for table in (one for one, destination in seen.items() if destination in found):
            there, mark = found[seen[table]].position, self._records[table].mark
            if there < mark:
                was = f"the destination has it at {there}, before {mark} which it had reached"
                self._lose([table], f"{was}: it was restored")

    def judge_slot(self, session: SourceSession) -> None:
        """Judges the apply slot. Tables whose group's slot is gone do not depend on the apply slot: they are copied
        again in any case."""
        slots = group_slots(session.list_slots())
        alive = {attempt for attempt, slot in slots.items() if slot.lost is None} | self._context.store.live_attempts()
        states = {table: self._records[table].state for table in self._past_init()}
        dependent = [t for t, state in states.items() if not needs_group_slot(state) or state.attempt in alive]
        if not dependent:
            return
        why = self._wrong_with_slot(session.find_slot(self._context.apply_slot))
        if why is not None:
            self._slot_void = True
            self._lose(dependent, why)

    def _wrong_with_slot(self, slot: Slot | None) -> str | None:
        """Returns why streaming cannot continue from the apply slot; None if it can. The ceiling is read after the
        slot, because it is raised before a slot is confirmed."""
        if slot is None:
            return f"the replication slot {self._context.apply_slot} does not exist any more"
        if slot.lost is not None:
            return f"the replication slot {slot.name} is lost ({slot.lost})"
        ceiling = self._context.store.progress(CEILING) or START
        if slot.confirmed is None or slot.confirmed > ceiling:
            return f"the replication slot {slot.name} was confirmed by another client, or made anew ({slot.confirmed})"
        return None

    def _past_init(self) -> list[TableName]:
        return [table for table, record in self._records.items() if past_init(record.state)]

    def _lose(self, tables: Iterable[TableName], why: str) -> None:
        for table in tables:
            self._lost.setdefault(table, why)

    # -- the result ----------------------------------------------------------------------------------------------------

    def finding(self) -> Finding | None:
        """Returns all gaps as one finding."""
        if not self._lost:
            return None
        if self._context.spec.source.on_slot_lost == "resync":
            remedy = 'The next run copies these tables again, for on_slot_lost = "resync".'
            return Finding(self._sentence(), remedy, "warning")
        return Finding(self._sentence(), _REMEDY, kind=self._kind)

    def refuse(self) -> None:
        """Raises if there are gaps and `on_slot_lost` is "error"."""
        if self._lost and self._context.spec.source.on_slot_lost == "error":
            raise PgetlError(self._kind, self._sentence(), remedy=_REMEDY)

    def reset(self) -> None:
        """Refuses, or resets the tables that have gaps."""
        self._note_set_back()
        self.refuse()
        for table, why in self._lost.items():
            self._context.observer(Noted("warning", f"{written(table)} is copied again, for {why}.", table))
        apply_each(self._context, {table: Reset(self._records[table].state.generation) for table in self._lost})

    def _note_set_back(self) -> None:
        """Records in the store that the source was set back, for later checks, until the gaps are settled. Does nothing
        if another process has settled them meanwhile."""
        store, ended = self._context.store, self._set_back
        if self._lost and ended is not None:
            store.load()
            if store.pipeline().lineage == replace(ended, ended=None):
                store.record_lineage(ended)

    @property
    def _kind(self) -> ErrorKind:
        return ErrorKind.LINEAGE if self._slot_void else ErrorKind.SLOT_LOST

    def settle(self, session: SourceSession) -> None:
        """Refuses, or resets the tables that have gaps, and records the present lineage as the valid one."""
        self.reset()
        context = self._context
        with session.deciding(context.apply_slot):
            if self._slot_void:
                self._give_up_slot(session)
            if self._present is not None:
                context.store.record_lineage(self._present.lineage)

    def _give_up_slot(self, session: SourceSession) -> None:
        """Drops the apply slot, unless another process has done so since it was judged, and may have created
        another."""
        context = self._context
        context.store.load()
        if self._wrong_with_lineage(session) or self._wrong_with_slot(session.find_slot(context.apply_slot)):
            session.drop_slot(context.apply_slot, terminate=True)
            for stream in context.store.seen():
                context.store.delete_progress(stream)

    def _sentence(self) -> str:
        reasons: dict[str, list[TableName]] = {}
        for table, why in self._lost.items():
            reasons.setdefault(why, []).append(table)
        said = "; ".join(f"{why} ({', '.join(map(str, sorted(tables)))})" for why, tables in reasons.items())
        return f"Changes may be missing: {said}."


def _was_seen(record: TableRecord) -> bool:
    """Returns whether the destination must still have the table's position. For a table that catches up, the slot holds
    all changes until it has been confirmed as far as the table's mark."""
    name = phase_name(record.state.phase)
    return name in FOLLOWED or (name in CATCHING_UP and record.mark > START)
