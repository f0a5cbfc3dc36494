"""Compares what is declared for each table now with the selection under which it was copied.

A change of a table's `columns`, `where`, `insert_only` or `destination`, or of the form that the destination gives all
tables, is a request for different data. That is no gap in history: only these tables are copied again, and the others
go on.

A table's membership of a publication is never changed in place: the table is removed and added again, as a new
pg_publication_rel row. So while the membership is the same, columns and filter are too, however the server spells them
now (a column may have been renamed). A new membership with the old selection was not made by pgetl, and changes may be
missing: see `gaps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.context import PipelineContext, apply_each
from airflow_provider_pgetl.engine.destinations.protocol import AtomicCopy
from airflow_provider_pgetl.engine.model.errors import Finding
from airflow_provider_pgetl.engine.model.phases import DataSync, Init, Reset, past_init
from airflow_provider_pgetl.engine.model.reports import Noted
from airflow_provider_pgetl.engine.model.tables import CopiedSelection, TableName
from airflow_provider_pgetl.engine.source.matching import Candidate
from airflow_provider_pgetl.engine.source.published import Publication, Share
from airflow_provider_pgetl.engine.state.protocol import Store, TableRecord

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


# -- Declared. ---------------------------------------------------------------------------------------------------------

Reasons = Mapping[TableName, str]
"""The tables that are to be copied again, each with the reason."""


def membership(candidate: Candidate, publications: Sequence[Publication]) -> int | None:
    """Returns the OID of the table's pg_publication_rel row, in whichever publication of the pipeline it is."""
    share = _share(candidate, publications)
    return None if share is None else share.membership


def copied_selection(
    candidate: Candidate, publications: Sequence[Publication], form: Mapping[str, str]
) -> CopiedSelection:
    """Returns the selection under which the table would be copied now."""
    share, match = _share(candidate, publications), candidate.match
    columns, where = (None, None) if share is None else (share.names, share.row_filter)
    return CopiedSelection(columns, where, match.spec.insert_only, match.destination, form)


def _share(candidate: Candidate, publications: Sequence[Publication]) -> Share | None:
    shares = (one.share(candidate.match.relation.oid, candidate.access.namespace) for one in publications)
    return next((share for share in shares if share is not None), None)


def changed(context: PipelineContext, candidates: Iterable[Candidate], publications: Sequence[Publication]) -> Reasons:
    """Returns the tables whose declaration differs from the selection under which they were copied, each with the
    reason."""
    store, form = context.store, context.spec.destination.form
    found = {}
    for candidate in candidates:
        record = store.tables().get(candidate.table)
        before = None if record is None or isinstance(record.state.phase, Init) else _as_copied(store, record)
        if record is None or before is None:
            continue
        now = copied_selection(candidate, publications, form)
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


def findings(reasons: Reasons) -> list[Finding]:
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
