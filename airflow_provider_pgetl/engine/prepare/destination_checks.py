"""Checks whether the destination is fit for this pipeline, and whether this store may write to it.

A destination records the highest epoch, generation and attempt that wrote to it, and refuses lower ones. The numbers
come from the store. A store that was lost and created again, or restored from a backup, or another store with a
pipeline of the same id, counts from too low a number, and everything it writes would be refused as that of a superseded
writer. Or it counts from a high enough number, and would go on in tables of another source. This is reported here,
before anything is done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from airflow_provider_pgetl.engine.changes.batch import TablePosition
from airflow_provider_pgetl.engine.context import PipelineContext, apply_each
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.protocol import AtomicCopy, Destination, Inspecting, Positions, Stamp
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, Finding, PgetlError, refuse
from airflow_provider_pgetl.engine.model.phases import FOLLOWED, Failed, past_init, phase_name
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import Noted
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.matching import Candidate
from airflow_provider_pgetl.engine.source.server import marked
from airflow_provider_pgetl.engine.state import decisions
from airflow_provider_pgetl.engine.state.decisions import failure_of
from airflow_provider_pgetl.engine.state.store import DestinationMetadata


def expect_fit(context: PipelineContext, connection: Connection, candidates: Sequence[Candidate]) -> None:
    """Raises if the destination cannot do its work, or if tables hold foreign rows; warns of what it can do only in
    part."""
    with context.destination("prepare") as destination:
        refuse(inspect_identity(connection, destination, candidates))
        refuse(inspect_names(destination, candidates))
        findings = [*inspect(destination), *inspect_foreign_rows(context, destination, candidates)]
        refuse(findings)
        for finding in findings:
            context.observer(Noted("warning", f"{finding.problem} {finding.remedy}"))
        expect_ours(context, destination)


def inspect(destination: Destination) -> list[Finding]:
    """Returns the destination's findings. Raises if the destination cannot be reached."""
    return list(destination.inspect()) if isinstance(destination, Inspecting) else []


def inspect_table(destination: Destination, schema: TableSchema) -> list[Finding]:
    return destination.inspect_table(schema) if isinstance(destination, Inspecting) else []


def inspect_identity(
    connection: Connection, destination: Destination, candidates: Sequence[Candidate]
) -> list[Finding]:
    """Returns findings for tables that would be copied onto followed tables of the same database: rows written there
    would come back as changes."""
    if not isinstance(destination, Inspecting):
        return []
    followed = {name for one in candidates for name in (one.table, *(leaf.leaf.name for leaf in one.leaves))}
    onto = [one for one in candidates if one.match.destination in followed]
    if not onto:
        return []
    with marked(connection) as mark:
        is_same = destination.bears(mark)
    return [_itself(one) for one in onto] if is_same else []


def inspect_names(destination: Destination, candidates: Sequence[Candidate]) -> list[Finding]:
    """Returns findings for tables whose names the destination cannot distinguish from others. Tables that are declared
    with the same name are refused earlier."""
    if not isinstance(destination, Inspecting):
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


def inspect_foreign_rows(
    context: PipelineContext, destination: Destination, candidates: Sequence[Candidate]
) -> list[Finding]:
    """Returns findings for tables in the destination with foreign rows, which a copy may not replace. A table that is
    already followed there and does not change is left out: if the destination no longer has it, that is a gap in
    history."""
    if not isinstance(destination, AtomicCopy):
        return []
    context.store.load()
    places = {one.match.destination: one for one in candidates if not _is_followed_there(context, one)}
    return [
        fencing.finding(places[place].table, place, holds, replaces=context.spec.replaces(places[place].match.spec))
        for place, holds in destination.foreign_rows(context.pipeline, sorted(places)).items()
    ]


def _is_followed_there(context: PipelineContext, candidate: Candidate) -> bool:
    record, place = context.store.tables().get(candidate.table), context.store.destination_metadata(candidate.table)
    at_home = place is not None and place.destination == candidate.match.destination
    if not at_home or record is None or not past_init(record.state):
        return False
    form = context.spec.destination.form
    return record.selection is None or all(form.get(key) == value for key, value in record.selection.form.items())


def expect_ours(context: PipelineContext, destination: Destination) -> None:
    """Raises if the destination was written by another store. Claiming the store's current epoch does not affect a
    running worker, which has the same epoch. The destination's attempts are read before the store's, because the store
    counts an attempt first."""
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
        if context.store.pipeline().epoch == epoch:  # else a worker has raised the epoch between the two reads
            raise _foreign(context.pipeline) from None


def expect_our_stamp(context: PipelineContext, destination: Destination) -> None:
    """Records in the destination the store's instance and its number of changes; raises if another instance is
    recorded, or if this store had more changes once. The destination's record is read before the store, whose number
    only grows."""
    if not isinstance(destination, Positions):
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
# Each write checks that itself. A table without changes is not written to, so it is checked here as well: by `prepare`,
# and periodically while a worker runs. A table that another pipeline, or a user, has replaced or altered becomes
# Errored, with the reason and the remedy.
#
# A destination that was restored, or has failed over to a standby that lagged behind, is detected when positions are
# read for a stream. While a worker runs, that may be much later; so its positions are compared with those seen before.


def lost(context: PipelineContext) -> Mapping[TableName, PgetlError]:
    """Returns the followed tables, by their names at the source, whose writes the destination would refuse."""
    records = context.store.tables()
    with context.destination("watch") as destination:
        found = destination.lost(context.pipeline) if isinstance(destination, Positions) else {}
    places = {table: context.store.destination_metadata(table) for table in records} if found else {}
    return {
        table: found[place.destination]
        for table, place in places.items()
        if place is not None and place.destination in found and phase_name(records[table].state.phase) in FOLLOWED
    }


def watch(context: PipelineContext) -> None:
    """Checks once, and acts on the result. A table that was reset meanwhile is left alone, because its generation
    differs."""
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
    """Raises SLOT_LOST if the destination has followed tables at a position before the one last seen, or no longer has
    their positions. The seen positions are read before the destination's, which only advance. Tables that were reset
    meanwhile, or are `lost`, are left out."""
    context.store.load()
    records = context.store.tables()
    states = {t: one.state for t, one in records.items() if phase_name(one.state.phase) in FOLLOWED}
    seen = decisions.known_positions(states, {table: one.mark for table, one in records.items()})
    with context.destination("watch") as destination:
        if not isinstance(destination, Positions):
            return
        found = destination.positions(context.pipeline)
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
    """Returns warnings for the lost tables; a run goes on without them."""
    return [
        Finding(error.message, error.remedy, "warning", table=str(table), kind=error.kind)
        for table, error in lost(context).items()
    ]
