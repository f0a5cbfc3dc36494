"""Whether the destination is fit for this pipeline, and is this store's to write to.

A destination remembers the highest epoch, generation and attempt that wrote to it, and refuses lower ones. The numbers
come from the store; so a store that was lost and begun anew, or restored from a backup, or another one with a pipeline
of the same id, counts from too low, and everything it does would be taken for a straggler's. That is told here, before
anything is done.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_pgetl.engine.destinations import occupied
from airflow_provider_pgetl.engine.destinations.protocol import (
    Destination,
    Discerning,
    Inspectable,
    Marked,
    Positions,
    TableInspecting,
)
from airflow_provider_pgetl.engine.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.findings import Finding, refuse
from airflow_provider_pgetl.engine.phases import past_init
from airflow_provider_pgetl.engine.reports import Noted
from airflow_provider_pgetl.engine.source.candidates import Candidate
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.marking import marked
from airflow_provider_pgetl.engine.sync.site import Site
from airflow_provider_pgetl.engine.tables import TableSchema


def expect_fit(site: Site, connection: Connection, candidates: Sequence[Candidate]) -> None:
    """Refuse a destination that cannot do its work, or has no room for it; say what it can do only in part."""
    destination = site.open_destination("prepare")
    try:
        refuse(inspect_identity(connection, destination, candidates))
        findings = [*inspect(destination), *inspect_room(site, destination, candidates)]
        refuse(findings)
        for finding in findings:
            site.observer(Noted("warning", f"{finding.problem} {finding.remedy}"))
        _expect_ours(site, destination)
    finally:
        destination.shutdown()


def inspect(destination: Destination) -> list[Finding]:
    """Raises where it cannot be reached."""
    return list(destination.inspect()) if isinstance(destination, Inspectable) else []


def inspect_table(destination: Destination, schema: TableSchema) -> list[Finding]:
    return destination.inspect_table(schema) if isinstance(destination, TableInspecting) else []


def inspect_identity(
    connection: Connection, destination: Destination, candidates: Sequence[Candidate]
) -> list[Finding]:
    """Tables that would be copied onto tables that are followed: what is written there comes back as a change."""
    if not isinstance(destination, Marked):
        return []
    followed = {name for one in candidates for name in (one.table, *(leaf.leaf.name for leaf in one.leaves))}
    onto = [one for one in candidates if one.match.destination in followed]
    if not onto:
        return []
    with marked(connection) as mark:
        is_same = destination.bears(mark)
    return [_itself(one) for one in onto] if is_same else []


def _itself(candidate: Candidate) -> Finding:
    place = candidate.match.destination
    problem = f"{place} in the destination is the source's own table: both URIs lead to the same database."
    remedy = "Name another database as destination, or give the table another `destination`, in a schema of its own."
    return Finding(problem, remedy, table=str(candidate.table))


def inspect_room(site: Site, destination: Destination, candidates: Sequence[Candidate]) -> list[Finding]:
    """Tables in whose place there is something that a copy may not replace. Of one that is followed there already, and
    goes on as it is, this is not the question: if the destination does not know it any more, that is a gap in
    history."""
    if not isinstance(destination, Discerning):
        return []
    site.store.load()
    places = {one.match.destination: one for one in candidates if not _is_followed_there(site, one)}
    return [
        occupied.finding(places[place].table, place, holds, replaces=site.spec.replaces(places[place].match.spec))
        for place, holds in destination.occupied(site.pipeline, sorted(places)).items()
    ]


def _is_followed_there(site: Site, candidate: Candidate) -> bool:
    record, place = site.store.tables().get(candidate.table), site.store.destination_metadata(candidate.table)
    at_home = place is not None and place.destination == candidate.match.destination
    if not at_home or record is None or not past_init(record.state):
        return False
    form = site.spec.destination.form
    return record.terms is None or all(form.get(key) == value for key, value in record.terms.form.items())


def _expect_ours(site: Site, destination: Destination) -> None:
    """To claim the epoch that the store is in changes nothing for a worker that runs: it is the very same."""
    if not isinstance(destination, Positions):
        return
    site.store.load()
    epoch = site.store.pipeline().epoch
    try:
        destination.claim(site.pipeline, epoch)
    except Fenced:
        site.store.load()
        if site.store.pipeline().epoch == epoch:  # else a worker has taken over between the two looks
            raise _foreign(site.pipeline) from None


def _foreign(pipeline: str) -> PgetlError:
    message = (
        f"The destination was written by pipeline {pipeline} of another state store, "
        "or this store was lost, or restored from a backup, since."
    )
    remedy = (
        "If no other store is in use, `pgetl destroy FILE` and then `pgetl run FILE`: every table is copied again. "
        "Else give this pipeline another id."
    )
    return PgetlError(ErrorKind.PREFLIGHT, message, remedy=remedy)
