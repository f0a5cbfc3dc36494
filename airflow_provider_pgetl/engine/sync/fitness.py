"""Whether the destination is fit for this pipeline, and is this store's to write to.

A destination remembers the highest epoch, generation and attempt that wrote to it, and refuses lower ones. The numbers
come from the store; so a store that was lost and begun anew, or restored from a backup, or another one with a pipeline
of the same id, counts from too low, and everything it does would be taken for a straggler's. Or it counts from high
enough, and would go on in tables that are another source's. That is told here, before anything is done.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_pgetl.engine.destinations import occupied
from airflow_provider_pgetl.engine.destinations.protocol import (
    Destination,
    Discerning,
    Inspectable,
    Marked,
    Naming,
    Positions,
    Stamp,
    Stamped,
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
        refuse(inspect_names(destination, candidates))
        findings = [*inspect(destination), *inspect_room(site, destination, candidates)]
        refuse(findings)
        for finding in findings:
            site.observer(Noted("warning", f"{finding.problem} {finding.remedy}"))
        expect_ours(site, destination)
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


def inspect_names(destination: Destination, candidates: Sequence[Candidate]) -> list[Finding]:
    """Tables that the destination would not tell from others. Those that are declared alike are refused before."""
    if not isinstance(destination, Naming):
        return []
    places = {one.match.destination: one.table for one in candidates}
    remedy = "Give the table another `destination`."
    return [
        Finding(f"{words}.", remedy, table=str(places[place]))
        for place, words in destination.indistinct(places).items()
    ]


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


def expect_ours(site: Site, destination: Destination) -> None:
    """To claim the epoch that the store is in changes nothing for a worker that runs: it is the very same. The
    destination's attempts are read before the store's, which are counted first."""
    if not isinstance(destination, Positions):
        return
    begun = destination.latest_attempt(site.pipeline)
    if begun > site.store.last_attempt():
        raise _foreign(site.pipeline)
    expect_our_stamp(site, destination)
    site.store.load()
    epoch = site.store.pipeline().epoch
    try:
        destination.claim(site.pipeline, epoch)
    except Fenced:
        site.store.load()
        if site.store.pipeline().epoch == epoch:  # else a worker has taken over between the two looks
            raise _foreign(site.pipeline) from None


def expect_our_stamp(site: Site, destination: Destination) -> None:
    """Note in the destination which store this is, and how far it has come; refuse if that is another, or if this one
    was further once. The destination's note is read before the store, which only moves on."""
    if not isinstance(destination, Stamped):
        return
    site.store.load()
    noted = destination.stamp(site.pipeline, Stamp(site.instance, site.store.changes()))
    site.store.load()
    if noted.instance != site.instance or noted.changes > site.store.changes():
        raise _foreign(site.pipeline)


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
