"""Checks periodically, while a worker runs, whether the source still sends the changes that its tables were copied for.

A table that was dropped, or removed from its publication for a moment, causes no error: its changes just stop, or some
are missing. So every `WATCH_SECONDS`, and whenever a stream has reconnected, the catalog is compared with what was
recorded when the table was prepared. A table that differs has a gap in its history. By `on_slot_lost`, that table alone
becomes Errored, with a remedy; or the run starts again, and its preparation publishes such tables and has them copied
again. By the table's own `resync`, it is published and copied again without that. A table that no longer exists, or is
sent under another name, becomes Errored in any case, because no preparation brings it back.

A table whose columns, replica identity or key are not those that were copied becomes Errored as well, unless the stream
carries the change over (see `stream.schema_versions`). A RELATION message reports most of such changes before the next
row, but not all, and none if no row comes. The stream reports when it received a RELATION message, and the catalog is
read soon after, at most every `WATCH_AGAIN_SECONDS`.

`interruptions` is pure, and further comparisons belong there. `watch` acts on its result through the store's
compare-and-set on the generation: a table that another process has reset or published meanwhile is left alone.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from airflow_provider_pgetl.engine.context import PipelineContext, SourceSession, apply_each
from airflow_provider_pgetl.engine.destinations.protocol import SchemaChanges
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import Errored, Failed, past_init
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import Noted
from airflow_provider_pgetl.engine.model.tables import Sender, TableName, TableSchema, written
from airflow_provider_pgetl.engine.source.alterations import Altered, Plan, Unclear, other_columns, plan
from airflow_provider_pgetl.engine.source.drift import (
    Storage,
    WatchedLeaf,
    WatchedSource,
    WatchedTable,
    alike,
    differences,
    redefined,
    redefined_columns,
    rewritten,
    storage,
)
from airflow_provider_pgetl.engine.source.hidden_changes import COMPUTED_ANEW
from airflow_provider_pgetl.engine.source.published import Share
from airflow_provider_pgetl.engine.source.publishing_rules import left_out, may_have_left_out
from airflow_provider_pgetl.engine.state.decisions import (
    LATEST,
    TableFailure,
    changed_at_source,
    failure_of,
    failure_of_table,
)
from airflow_provider_pgetl.engine.state.store import TableRecord

log = logging.getLogger(__name__)

WATCH_SECONDS = 120.0
WATCH_AGAIN_SECONDS = 5.0

_PREPARED_AGAIN = (
    "Stop the run, reset the table with `pgetl reset FILE TABLE`, and run again: that publishes and copies it."
)
_GONE = "Create the table again and `pgetl reset FILE TABLE`, or take it out of the declaration; then run again."


@dataclass(frozen=True, slots=True)
class Interruption:
    """Why a table's changes may be missing. `solution`: the remedy if no preparation brings the table back."""

    why: str
    solution: str | None = None


Records = Mapping[TableName, TableRecord]
Publish = Callable[[Collection[TableName]], None]
Schemas = Mapping[TableName, TableSchema]


def interruptions(
    records: Records, schemas: Schemas, source: WatchedSource, publication: int | None, *, managed: bool
) -> dict[TableName, Interruption]:
    """Returns the tables past Init whose changes are not what they were when the table was copied. `publication` is the
    recorded OID of the pipeline's publication, by which tables are recognized that are published without being named.
    `managed`: whether pgetl manages the publications; only a publication of the user's own may leave out truncates."""
    found = {}
    for table, record in records.items():
        if _is_followed(record) and record.relation is not None:
            present = source.tables.get(record.relation)
            if present is None:
                gone = not source.has(table)
                again = "" if gone else " and created again"
                found[table] = Interruption(f"it was dropped{again} at the source", _GONE if gone else None)
            elif present.name != table and source.has(table):
                found[table] = Interruption(
                    f"it was renamed to {present.name} at the source, and another table has its name"
                )
            elif (root := source.sent_as(present)) is not None:
                found[table] = Interruption(
                    f"it became a partition of {root} at the source, under whose name its changes are sent",
                    f"Declare {written(root)} in its place; then run again.",
                )
            elif why := _unpublished(record, schemas.get(table), present, source, publication, managed):
                found[table] = Interruption(why)
    return found


def drifted(
    records: Records, schemas: Schemas, source: WatchedSource, *, computed: bool, described: bool = False
) -> dict[TableName, list[str]]:
    """Returns the tables past Init that are not as they were when they were copied, each with its differences. Tables
    that do not exist or are not published are the subject of `interruptions`. `computed`: the destination computes the
    columns that the source does not send. `described`: the stream is told of each altered table, in order with its
    rows, and compares columns itself."""
    found = {}
    for table, schema in schemas.items():
        present = source.tables.get(schema.relation)
        share = None if present is None else source.share(present)
        if present is not None and share is not None and _is_followed(records[table]):
            differing = [] if described else differences(schema, present.described(share))
            found[table] = differing or _retyped(schema, source)
            found[table] += [_unfollowed(one) for one in present.unfollowed]
            if computed:
                found[table] += redefined_columns(schema, {one.name: one.generation for one in present.columns})
    return {table: what for table, what in found.items() if what}


def _retyped(schema: TableSchema, source: WatchedSource) -> list[str]:
    types = {one.type.oid: one.type for one in schema.columns if one.type.oid in source.types}
    return [why for oid, before in types.items() if (why := redefined(before, source.types[oid]))]


def _unfollowed(relation: TableName) -> str:
    return f"the WAL has no changes of {relation}, which is unlogged or foreign"


def mute_partitions(records: Records, source: WatchedSource) -> dict[TableName, TableName]:
    """Returns the partitions whose updates and deletes fail at the source because they are published without a replica
    identity, each with its table."""
    return {
        leaf.name: table
        for table, present in _updated(records, source).items()
        for leaf in present.leaves
        if leaf.followed and not leaf.identity.usable
    }


def unsent_identities(records: Records, source: WatchedSource) -> dict[TableName, list[str]]:
    """Returns the tables whose updates and deletes fail at the source because all columns are their replica identity,
    each with its virtual columns, which the source computes when they are read and never sends."""
    found = {}
    for table, present in _updated(records, source).items():
        written_to = present.leaves if present.partitioned else (present,)
        virtual = [one.name for one in present.columns if one.generated == "v"]
        if virtual and any(one.identity.identity == "full" for one in written_to):
            found[table] = virtual
    return found


def _updated(records: Records, source: WatchedSource) -> dict[TableName, WatchedTable]:
    """Returns the tables whose updates and deletes are published."""
    return {
        table: source.tables[record.relation]
        for table, record in records.items()
        if record.relation is not None
        and record.relation in source.tables
        and not (record.selection is not None and record.selection.insert_only)
    }


def moved_partitions(schema: TableSchema, present: WatchedTable, leaves: Set[int]) -> list[str]:
    """Returns messages about partitions that were added or removed together with rows, which the stream does not
    report. `leaves` are the OIDs of the partitions that the earlier checks have seen, or the copy."""
    found = [
        f"{leaf.name} was attached to {written(schema.table)}: rows that it had before are not in the destination"
        for leaf in present.leaves
        if leaf.attached and leaf.oid not in leaves
    ]
    before = dict(schema.attachments)
    found += [
        f"{leaf.name} was detached from {written(schema.table)} and attached again: what was changed in it meanwhile "
        "is not in the destination"
        for leaf in present.leaves
        if before.get(leaf.oid, leaf.attachment) != leaf.attachment
    ]
    found += [
        f"{leaf.name}, a partition of {written(schema.table)}, was truncated, or written anew: rows that it had may "
        "stay in the destination"
        for leaf in _truncated_alone(schema, present)
    ]
    if gone := len(leaves - {leaf.oid for leaf in present.leaves}):
        found.append(
            f"{gone} of the partitions of {written(schema.table)} were detached or dropped: their rows stay in the "
            "destination"
        )
    return found


def _truncated_alone(schema: TableSchema, present: WatchedTable) -> list[WatchedLeaf]:
    """Returns the partitions that were truncated or rewritten alone, as far as the catalog shows. A TRUNCATE of the
    whole table, which is sent, gives every partition another file."""
    before = dict(schema.files)
    moved = [leaf for leaf in present.leaves if before.get(leaf.oid, leaf.file) != leaf.file]
    is_whole = len(moved) == sum(leaf.oid in before for leaf in present.leaves)
    return [] if is_whole else [leaf for leaf in moved if leaf.emptied]


def _is_followed(record: TableRecord) -> bool:
    return past_init(record.state) and not isinstance(record.state.phase, Errored)


def _unpublished(
    record: TableRecord,
    copied: TableSchema | None,
    present: WatchedTable,
    source: WatchedSource,
    publication: int | None,
    managed: bool,
) -> str | None:
    share = source.share(present)
    if share is None:
        return "it is not published any more"
    sender = source.publication(share.publication)
    if share.membership != record.membership or _is_another(share, publication):
        return "it was taken out of the publication"
    insert_only = record.selection is not None and record.selection.insert_only
    why = left_out(sender, insert_only=insert_only, partitioned=present.partitioned, truncates=managed)
    return why or may_have_left_out(sender, copied)


def _is_another(share: Share, publication: int | None) -> bool:
    """Returns whether another publication publishes the table now. For a table that is published without being named,
    only the publication itself shows that."""
    return share.membership is None and publication is not None and share.publication != publication


@dataclass(slots=True)
class EarlierLooks:
    """What earlier checks have found: the warnings already reported."""

    warned: set[str] = field(default_factory=set)


_DESCRIBED = "described"
"""The completion record with the positions from which on the event trigger of the source describes altered tables."""


def watch(
    context: PipelineContext,
    session: SourceSession,
    seen: EarlierLooks,
    publish: Publish,
    described_since: Boundary | None = None,
) -> None:
    """Checks once, and acts on the result. Raises SLOT_LOST if the run has to start again. `publish` publishes
    tables anew, as they are now. `described_since`: the position from which on all streams are told of each altered
    table; None if one of them is not. The first check after that still compares everything: what was altered before
    comes in no description."""
    context.store.load()
    described = described_since is not None and str(described_since) in context.store.completions(_DESCRIBED)
    records, lineage = context.store.tables(), context.store.pipeline().lineage
    oids = [record.relation for record in records.values() if record.relation is not None]
    schemas = _schemas(context, records)  # before the source: what a stream stores meanwhile is not older than that
    source = session.watched(context.publications, oids, records)
    known, settings = None if lineage is None else lineage.publication, context.spec.source
    found = interruptions(records, schemas, source, known, managed=settings.manage_publication)
    lost = {table: each for table, each in found.items() if settings.on_slot_lost == "resync" and each.solution is None}
    _interrupt(context, records, {table: each for table, each in found.items() if table not in lost}, publish)
    compared = {table: one for table, one in schemas.items() if table not in found}
    _fail_drifted(context, session, records, compared, source, described=described)
    if described_since is not None and not described:
        context.store.record_completion(_DESCRIBED, str(described_since))
    mute = {_muteness(leaf, table): table for leaf, table in mute_partitions(records, source).items()}
    mute |= {_unsent(table, columns): table for table, columns in unsent_identities(records, source).items()}
    _warn(context, mute, seen.warned)
    if lost:
        said = "; ".join(f"{table}: {each.why}" for table, each in sorted(lost.items()))
        raise PgetlError(ErrorKind.SLOT_LOST, f"Changes may be missing of {said}.")


def _schemas(context: PipelineContext, records: Records) -> Schemas:
    """Returns the schemas of the followed tables as they were copied, or as the stream has last carried them over."""
    known = {table: context.store.schema(table, LATEST) for table, one in records.items() if _is_followed(one)}
    return {table: schema for table, schema in known.items() if schema is not None}


def fail_unlogged(context: PipelineContext, session: SourceSession) -> None:
    """Makes tables Errored whose changes are in no WAL, before a preparation refuses them: once they are logged again,
    nothing shows that changes are missing."""
    context.store.load()
    records = {table: one for table, one in context.store.tables().items() if _is_followed(one)}
    if not records:
        return
    oids = [record.relation for record in records.values() if record.relation is not None]
    source = session.watched(context.publications, oids, records)
    found = {
        table: [_unfollowed(one) for one in source.tables[record.relation].unfollowed]
        for table, record in records.items()
        if record.relation is not None and record.relation in source.tables
    }
    apply_each(context, {t: _changed(context, records[t], what, unlogged=True) for t, what in found.items() if what})


def _changed(
    context: PipelineContext, record: TableRecord, what: Sequence[str], why: str | None = None, *, unlogged: bool
) -> Failed:
    """`unlogged`: the WAL has no changes of the table, or of a partition, so that a new copy would lack them too."""
    error = changed_at_source(record.table, record.table, what, why)
    now = context.store.now()
    failure = failure_of(error, now) if unlogged else failure_of_table(context.store, record.table, error)
    return Failed(record.state.generation, failure.reason, failure.solution, failure.retry_policy)


def _interrupt(
    context: PipelineContext,
    records: Records,
    found: Mapping[TableName, Interruption],
    publish: Publish,
) -> None:
    """Makes the tables Errored. Those that are copied again by themselves are published first, if that is possible."""
    failures = {table: _failure(context, table, one) for table, one in found.items()}
    if again := [table for table, one in failures.items() if one.retry_policy.anew]:
        try:
            publish(again)
        except PgetlError as error:
            if error.transient:
                raise
            log.warning("Tables that were exchanged cannot be published again: %s", error)
            failures = {table: _failure(context, table, one, by_itself=False) for table, one in found.items()}
    apply_each(
        context,
        {
            table: Failed(records[table].state.generation, one.reason, one.solution, one.retry_policy)
            for table, one in failures.items()
        },
    )


def _failure(
    context: PipelineContext, table: TableName, found: Interruption, *, by_itself: bool = True
) -> TableFailure:
    reason = f"Changes may be missing: {found.why}."
    error = PgetlError(ErrorKind.ALTERED, reason, remedy=found.solution or _PREPARED_AGAIN)
    if found.solution is not None or not by_itself:
        return failure_of(error, context.store.now())
    return failure_of_table(context.store, table, error)


def _fail_drifted(
    context: PipelineContext,
    session: SourceSession,
    records: Records,
    schemas: Schemas,
    source: WatchedSource,
    *,
    described: bool,
) -> None:
    found = drifted(records, schemas, source, computed=context.spec.destination.computes, described=described)
    planned = _planned(context, session, {table: schemas[table] for table in found}, source)
    carried = {table for table, one in planned.items() if isinstance(one, Altered)}
    why = {table: one.why for table, one in planned.items() if isinstance(one, Unclear)}

    def fail(tables: Mapping[TableName, Sequence[str]]) -> None:
        unlogged = {table: bool(source.tables[schemas[table].relation].unfollowed) for table in tables}
        failed = {
            table: _changed(context, records[table], what, why.get(table), unlogged=unlogged[table])
            for table, what in tables.items()
        }
        apply_each(context, failed)

    # Before anything is stored of them: were this process killed in between, their files would seem to have been looked
    # at, and nothing would tell any more that what existing rows have is not known.
    fail({table: what for table, what in found.items() if table not in carried})
    rewritten_ones = _rewritten(context, {t: one for t, one in schemas.items() if t not in carried}, source, described)
    fail({table: [COMPUTED_ANEW] for table in rewritten_ones if table not in found})


def _planned(
    context: PipelineContext, session: SourceSession, schemas: Schemas, source: WatchedSource
) -> dict[TableName, Plan]:
    """Returns for altered tables whether the stream carries the change over with the next row. Of those of which it
    does, what this check finds is not stored: by what was stored before, the stream tells what existing rows have."""
    described = {}
    for table, schema in schemas.items():
        present = source.tables[schema.relation]
        share = source.share(present)
        if share is not None and other_columns(schema, now := present.described(share)):
            described[table] = now
    if not described:
        return {}
    with context.destination("watch") as destination:
        if not isinstance(destination, SchemaChanges):
            return {}
    return {
        table: plan(schemas[table], now, session.present_table(schemas[table].relation))
        for table, now in described.items()
    }


def _rewritten(context: PipelineContext, schemas: Schemas, source: WatchedSource, described: bool) -> list[TableName]:
    """Returns the tables that were rewritten, unless the stream is told of that (`described`), since the previous check
    or since they were copied. Each check stores what it finds, so that the next one, in whichever run, compares with
    that: files and columns that are replaced at different times do not count together, and partitions that were added
    later count as well."""
    found = []
    for table, schema in schemas.items():
        present = source.tables.get(schema.relation)
        if present is None:
            continue
        was, now = storage(schema), present.storage(schema.names)
        _tell_of_partitions(context, schema, present, was.files.keys())
        if rewritten(was, now):
            found += [] if described else [table]  # the stream has still to come to it, and stores it then
        else:
            _store(context, schema, now, present, source.sender(present))
    return found


def _tell_of_partitions(context: PipelineContext, schema: TableSchema, present: WatchedTable, leaves: Set[int]) -> None:
    """Reports moved partitions as warnings: retention drops and detaches partitions all the time, so this is no error
    of the table."""
    if present.partitioned:
        for message in moved_partitions(schema, present, leaves):
            remedy = f"Copy the table again: `pgetl reset FILE {shlex.quote(written(schema.table))}`."
            context.observer(Noted("warning", f"{message}. {remedy}", schema.table))


def _store(
    context: PipelineContext, schema: TableSchema, now: Storage, present: WatchedTable, sender: Sender | None
) -> None:
    columns = tuple(replace(one, altered=now.altered.get(one.name, one.altered)) for one in schema.columns)
    attachments = {leaf.oid: leaf.attachment for leaf in present.leaves}
    before = (schema.columns, dict(schema.files), dict(schema.attachments), schema.sender)
    if before == (columns, now.files, attachments, sender):
        return
    files, attached = tuple(now.files.items()), tuple(attachments.items())
    found = replace(schema, columns=columns, files=files, attachments=attached, sender=sender)
    versions = context.store.schemas().get(schema.table, {})
    valid_from = next((start for start, version in versions.items() if version == schema), None)
    if valid_from is not None:  # otherwise the stream, or a copy, has stored another version meanwhile
        context.store.store_schema(schema.table, valid_from, found)


def _muteness(leaf: TableName, table: TableName) -> str:
    return (
        f"{leaf}, a partition of {written(table)}, has no replica identity: as it is published, its UPDATE and "
        f"DELETE fail at the source. {alike(leaf)} lets them succeed."
    )


def _unsent(table: TableName, columns: Sequence[str]) -> str:
    return (
        f"{written(table)} has replica identity full and the virtual column {', '.join(columns)}, which cannot be "
        "published: its UPDATE and DELETE fail at the source. Drop the column, or choose an index as its replica "
        "identity."
    )


def _warn(context: PipelineContext, messages: Mapping[str, TableName], warned: set[str]) -> None:
    for message, table in messages.items():
        if message not in warned:
            context.observer(Noted("warning", message, table))
    warned.clear()
    warned.update(messages)
