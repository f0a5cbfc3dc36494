"""Whether the destination is fit for this pipeline, and is this store's to write to.

A destination remembers the highest epoch, generation and attempt that wrote to it, and refuses lower ones. The numbers
come from the store; so a store that was lost and begun anew, or restored from a backup, or another one with a pipeline
of the same id, counts from too low, and everything it does would be taken for a straggler's. Or it counts from high
enough, and would go on in tables that are another source's. That is told here, before anything is done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from airflow_provider_pgetl.engine.changes.batch import TablePosition
from airflow_provider_pgetl.engine.context import PipelineContext, apply_each
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.protocol import (
    Destination,
    Discerning,
    Holding,
    Inspectable,
    Marked,
    Naming,
    Positions,
    Stamp,
    Stamped,
    TableInspecting,
)
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.model.findings import Finding, refuse
from airflow_provider_pgetl.engine.model.phases import FOLLOWED, Failed, past_init, phase_name
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import Noted
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.matching import Candidate
from airflow_provider_pgetl.engine.source.server import marked
from airflow_provider_pgetl.engine.state import decisions
from airflow_provider_pgetl.engine.state.decisions import failure_of
from airflow_provider_pgetl.engine.state.protocol import DestinationMetadata


def expect_fit(context: PipelineContext, connection: Connection, candidates: Sequence[Candidate]) -> None:
    """Refuse a destination that cannot do its work, or has no room for it; say what it can do only in part."""
    destination = context.open_destination("prepare")
    try:
        refuse(inspect_identity(connection, destination, candidates))
        refuse(inspect_names(destination, candidates))
        findings = [*inspect(destination), *inspect_room(context, destination, candidates)]
        refuse(findings)
        for finding in findings:
            context.observer(Noted("warning", f"{finding.problem} {finding.remedy}"))
        expect_ours(context, destination)
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


def inspect_room(context: PipelineContext, destination: Destination, candidates: Sequence[Candidate]) -> list[Finding]:
    """Tables in whose place there is something that a copy may not replace. Of one that is followed there already, and
    goes on as it is, this is not the question: if the destination does not know it any more, that is a gap in
    history."""
    if not isinstance(destination, Discerning):
        return []
    context.store.load()
    places = {one.match.destination: one for one in candidates if not _is_followed_there(context, one)}
    return [
        fencing.finding(places[place].table, place, holds, replaces=context.spec.replaces(places[place].match.spec))
        for place, holds in destination.occupied(context.pipeline, sorted(places)).items()
    ]


def _is_followed_there(context: PipelineContext, candidate: Candidate) -> bool:
    record, place = context.store.tables().get(candidate.table), context.store.destination_metadata(candidate.table)
    at_home = place is not None and place.destination == candidate.match.destination
    if not at_home or record is None or not past_init(record.state):
        return False
    form = context.spec.destination.form
    return record.terms is None or all(form.get(key) == value for key, value in record.terms.form.items())


def expect_ours(context: PipelineContext, destination: Destination) -> None:
    """To claim the epoch that the store is in changes nothing for a worker that runs: it is the very same. The
    destination's attempts are read before the store's, which are counted first."""
    if not isinstance(destination, Positions):
        return
    begun = destination.latest_attempt(context.pipeline)
    if begun > context.store.last_attempt():
        raise _foreign(context.pipeline)
    expect_our_stamp(context, destination)
    context.store.load()
    epoch = context.store.pipeline().epoch
    try:
        destination.claim(context.pipeline, epoch)
    except Fenced:
        context.store.load()
        if context.store.pipeline().epoch == epoch:  # else a worker has taken over between the two looks
            raise _foreign(context.pipeline) from None


def expect_our_stamp(context: PipelineContext, destination: Destination) -> None:
    """Note in the destination which store this is, and how far it has come; refuse if that is another, or if this one
    was further once. The destination's note is read before the store, which only moves on."""
    if not isinstance(destination, Stamped):
        return
    context.store.load()
    noted = destination.stamp(context.pipeline, Stamp(context.instance, context.store.changes()))
    context.store.load()
    if noted.instance != context.instance or noted.changes > context.store.changes():
        raise _foreign(context.pipeline)


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


# -- Whether the destination's tables are still those that this pipeline published. ------------------------------------
#
# Each write asks that itself. A table without changes is not written to, so it is asked here as well: by prepare, and
# again and again while a worker runs. A table that another pipeline, or a person, has replaced or altered becomes
# Errored, with whose it is and what is to be done.
#
# A destination that was restored, or has failed over to a standby that lagged behind, is found by whoever reads
# positions for a stream. While a worker runs, that may be long after: so its positions are held against what was seen
# of them.


def lost(context: PipelineContext) -> Mapping[TableName, PgetlError]:
    """The tables, by the source's name, that are followed and that the destination would not have written to."""
    records = context.store.tables()
    destination = context.open_destination("watch")
    try:
        found = destination.lost(context.pipeline) if isinstance(destination, Holding) else {}
    finally:
        destination.shutdown()
    places = {table: context.store.destination_metadata(table) for table in records} if found else {}
    return {
        table: found[place.destination]
        for table, place in places.items()
        if place is not None and place.destination in found and phase_name(records[table].state.phase) in FOLLOWED
    }


def watch(context: PipelineContext) -> None:
    """Look once, and act. What was reset meanwhile is left alone, by its generation."""
    context.store.load()
    records = context.store.tables()
    failures = {table: failure_of(error, context.store.now()) for table, error in lost(context).items()}
    apply_each(
        context,
        {
            table: Failed(records[table].state.generation, one.reason, one.solution, one.retry_policy)
            for table, one in failures.items()
        },
    )


def expect_not_set_back(context: PipelineContext) -> None:
    """Raise SLOT_LOST where the destination has tables that are followed before where they were seen, or has no
    position of them any more. What was seen is read before the destination is, which only moves on; a table that was
    reset meanwhile, or is `lost`, is another matter."""
    context.store.load()
    records = context.store.tables()
    states = {t: one.state for t, one in records.items() if phase_name(one.state.phase) in FOLLOWED}
    seen = decisions.known_positions(states, {table: one.mark for table, one in records.items()})
    destination = context.open_destination("watch")
    try:
        if not isinstance(destination, Positions):
            return
        found = destination.positions(context.pipeline)
    finally:
        destination.shutdown()
    back = {table for table, at in seen.items() if _stands_before(at, context.store.destination_metadata(table), found)}
    if back:
        told = lost(context)
        context.store.load()
        now = context.store.tables()
        back = {t for t in back - told.keys() if t in now and now[t].state.generation == states[t].generation}
    if back:
        raise set_back(back)


def _stands_before(seen: Boundary, place: DestinationMetadata | None, found: Mapping[TableName, TablePosition]) -> bool:
    if place is None:
        return False
    there = found.get(place.destination)
    return there is None or there.position < seen


def set_back(tables: Collection[TableName]) -> PgetlError:
    names = ", ".join(map(str, sorted(tables)))
    message = f"The destination has {names} before where it had come already: it was restored."
    return PgetlError(ErrorKind.SLOT_LOST, message)


def findings(context: PipelineContext) -> list[Finding]:
    """A run goes on without these tables."""
    return [
        Finding(error.message, error.remedy, "warning", table=str(table), kind=error.kind)
        for table, error in lost(context).items()
    ]
