"""What is declared of each table now, held against the terms on which it was copied.

Who changes `columns`, `where`, `insert_only` or `destination` of a table, or what the destination makes of all tables,
wants something else there. That is no gap in history: these tables alone are copied anew, and the others go on.

A table's share of a publication never changes in place: it is taken out and put back, as a new pg_publication_rel row.
So while the membership is the same, columns and filter are, too, however the server spells them now (a column may have
been renamed). A new membership on the old terms is somebody else's doing, by which changes may be missing: see `gaps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from airflow_provider_pgetl.engine.findings import Finding
from airflow_provider_pgetl.engine.phases import Init, Reset, past_init
from airflow_provider_pgetl.engine.reports import Noted
from airflow_provider_pgetl.engine.source.candidates import Candidate
from airflow_provider_pgetl.engine.source.published import Publication, Share
from airflow_provider_pgetl.engine.state.protocol import Store, TableRecord
from airflow_provider_pgetl.engine.sync.abandoning import abandon_copies
from airflow_provider_pgetl.engine.sync.events import apply_each
from airflow_provider_pgetl.engine.sync.site import Site
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.engine.terms import Terms

Reasons = Mapping[TableName, str]
"""Tables that are to be copied anew, each with why."""


def membership(candidate: Candidate, publications: Sequence[Publication]) -> int | None:
    """The table's pg_publication_rel row, in whichever of our publications it is."""
    share = _share(candidate, publications)
    return None if share is None else share.membership


def terms(candidate: Candidate, publications: Sequence[Publication], form: Mapping[str, str]) -> Terms:
    """Those on which the table would be copied now."""
    share, match = _share(candidate, publications), candidate.match
    columns, where = (None, None) if share is None else (share.names, share.row_filter)
    return Terms(columns, where, match.spec.insert_only, match.destination, form)


def _share(candidate: Candidate, publications: Sequence[Publication]) -> Share | None:
    shares = (one.share(candidate.match.relation.oid, candidate.access.namespace) for one in publications)
    return next((share for share in shares if share is not None), None)


def changed(site: Site, candidates: Iterable[Candidate], publications: Sequence[Publication]) -> Reasons:
    """The tables of which something else is wanted than what they were copied for."""
    store, form = site.store, site.spec.destination.form
    found = {}
    for candidate in candidates:
        record = store.tables().get(candidate.table)
        before = None if record is None or isinstance(record.state.phase, Init) else _as_copied(store, record)
        if record is None or before is None:
            continue
        now = terms(candidate, publications, form)
        if record.membership == membership(candidate, publications):
            now = replace(now, columns=before.columns, where=before.where)
        if keys := before.differences(now):
            found[candidate.table] = _why(keys, before, now)
    return found


def _as_copied(store: Store, record: TableRecord) -> Terms | None:
    """Of where a copy went it knows best itself."""
    place = store.destination_metadata(record.table)
    if record.terms is None or place is None or not past_init(record.state):
        return record.terms
    return replace(record.terms, destination=place.destination)


def _why(keys: Sequence[str], before: Terms, now: Terms) -> str:
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


def copy_anew(site: Site, reasons: Reasons) -> None:
    """Reset these tables, and say so."""
    records = site.store.tables()
    for table, why in reasons.items():
        site.observer(Noted("info", f"{table} is copied anew: {why}.", table))
    apply_each(site, {table: Reset(records[table].state.generation) for table in reasons})
    abandon_copies(site, [records[table] for table in reasons])
