"""Schema changes of the source, in order with its data.

A stream meets a change as a RELATION message that differs from the version of the table's schema that is in force. The
change becomes a version of its own, which is stored with its position before any row is read under it:

    RELATION differs ──plan──▶ version stored ──▶ rows gathered under it ──▶ destination altered ──▶ rows written
    (the stream's thread, with a look at the catalog)                        (the writer's thread, before the batch)

* A version is valid from the commit LSN of the first transaction that has rows under it. Of that transaction, rows from
  before the ALTER were sent under the version before.
* A batch is written under the newest version of each table, and the destination's table is altered before it. Rows of
  the batch that were sent under an earlier version are converted (`changes.versions`). So no batch is cut within a
  transaction, and readers see the new column no later than the first row with it.
* Altering a destination is idempotent: it compares its table with the version. So a crash at any point is followed by
  the same steps. A writer does so for each table with several versions, once before its first batch of it: what an
  earlier worker had stored, and perhaps not done, is done then.
* A position that is sent again finds the version by which it was read before.

A change that cannot be carried over makes the table Errored when its first row is written, with the reason. So does one
that no RELATION message shows: after each of them the catalog is read (`source.hidden_changes`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.changes.versions import alterations, changes_between
from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.destinations.protocol import SchemaChange, SchemaChanges
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import START, Boundary, CommitLsn, format_lsn
from airflow_provider_pgetl.engine.model.reports import Noted
from airflow_provider_pgetl.engine.model.tables import PgType, TableName, TableSchema, written
from airflow_provider_pgetl.engine.runtime.processes import reach
from airflow_provider_pgetl.engine.source.alterations import (
    Altered,
    NotYetVisible,
    Plan,
    Unclear,
    loosened,
    other_columns,
    plan,
)
from airflow_provider_pgetl.engine.source.ddl_trigger import DdlMessage
from airflow_provider_pgetl.engine.source.described_tables import Description
from airflow_provider_pgetl.engine.source.drift import ColumnForm, PublishedDescription, differences
from airflow_provider_pgetl.engine.source.hidden_changes import COMPUTED_ANEW, Look, hidden_change
from airflow_provider_pgetl.engine.state.decisions import changed_at_source
from airflow_provider_pgetl.engine.stream.batches import Route, Routes, description
from airflow_provider_pgetl.engine.wal.pgoutput import Relation

log = logging.getLogger(__name__)

KEPT = 20
"""Versions of a table that are kept though no position needs them any more, to be looked at."""
VISIBLE_SECONDS = 15.0
_SHOWN_SECONDS = 0.5
_LOOK_SECONDS = 0.02
NO_ABILITY = "the destination cannot alter its tables"


@dataclass(frozen=True, slots=True)
class _LookedAt:
    """What a look at the catalog has shown of the table that was copied at `copied`: `why` it was changed in a way that
    no RELATION message shows, if it was. `look`: None if there is nothing to look for. `loose`: the version with the
    columns nullable that have become so, if there are any."""

    copied: Boundary
    look: Look | None = None
    why: str | None = None
    loose: TableSchema | None = None

    def is_of(self, route: Route) -> bool:
        return self.copied == route.copied


@dataclass(frozen=True, slots=True)
class _DescribedSoFar:
    """What the transaction that is being read has altered: by the command under way, the files that were `rewritten`,
    with whether their values were only cast; by those before it, the versions that they have led to (`steps`). Each
    command is judged by the one before it: what existing rows have in an added column is no longer known after another
    command has written the rows anew."""

    commit_lsn: CommitLsn
    rewritten: dict[int, bool] = field(default_factory=dict)
    steps: dict[int, TableSchema] = field(default_factory=dict)


class SchemaVersions:
    """The versions under which one connection of a stream reads rows."""

    def __init__(
        self,
        name: str,
        context: PipelineContext,
        routes: Routes,
        positions: Mapping[TableName, Boundary],
        awaited: dict[int, float],
        described_since: Boundary | None = None,
    ) -> None:
        """`positions`: those of the tables in the destination, as they move. `awaited`: since when an ALTER of a
        relation is waited for, over all connections of the stream. `described_since`: what is committed after this
        position is described by the source's event trigger; None if nothing is."""
        self._described_since = described_since
        self._described_so_far = _DescribedSoFar(CommitLsn(0))
        self._unfit: dict[int, _LookedAt] = {}
        self._name = name
        self._awaited = awaited
        self._positions = positions
        self._context = context
        self._routes = routes
        self._judged: dict[int, tuple[Route, Relation, Route]] = {}
        self._looked: dict[int, _LookedAt] = {}

    def fitting(self, route: Route, relation: Relation, commit_lsn: CommitLsn, xid: int) -> Route:
        """Returns the table's route for rows that were sent under this description in this transaction. Stores a new
        version if there is none that fits. `Route.unfit` says why, if there cannot be one."""
        known = self._judged.get(relation.oid)
        if known is not None and known[0] is route and known[1] is relation:
            return known[2]
        now = description(relation)
        found = _in_force(route, now, commit_lsn)
        is_shown = True
        if found is None:
            found = self._changed(route, now, commit_lsn)
            route = self._routes.of_relation(relation.oid) or route
        elif not self._is_described(commit_lsn):
            look = self._looked_at(route, commit_lsn, xid)
            is_shown = look.look is None or look.look.shows(commit_lsn, xid)
            found = found if look.why is None else replace(found, unfit=look.why)
            if look.loose is not None and look.why is None and route.versions[-1][0].lsn <= commit_lsn:
                self._looked[route.relation] = replace(look, loose=None)
                self._store(route, route.versions[-1][1], look.loose, commit_lsn)
                route = self._routes.of_relation(relation.oid) or route
                found = _in_force(route, now, commit_lsn) or found
        known_unfit = self._unfit.get(relation.oid)
        if known_unfit is not None and known_unfit.is_of(route):
            found = replace(found, unfit=known_unfit.why)
        if is_shown and (not route.is_altered or commit_lsn > route.versions[-1][0].lsn):
            self._judged[relation.oid] = route, relation, found
        return found

    # -- tables that the event trigger describes

    def _is_described(self, commit_lsn: CommitLsn) -> bool:
        return self._described_since is not None and commit_lsn > self._described_since.lsn

    def describe(
        self, content: bytes, commit_lsn: CommitLsn, owns: Callable[[TableName, CommitLsn], bool]
    ) -> dict[TableName, PgetlError]:
        """Takes in what a command has altered, as the event trigger describes it, in the transaction that is being
        read. Stores new versions. Returns the tables for which there cannot be one, each with the reason: they are
        Errored, as even rows that do not change are others from here on."""
        if not self._is_described(commit_lsn):
            return {}
        try:
            message = DdlMessage.parse(content)
        except PgetlError as error:
            log.warning("A logical message of the source is not used: %s", error.message)
            return {}
        if self._described_so_far.commit_lsn != commit_lsn:
            self._described_so_far = _DescribedSoFar(commit_lsn)
        rewritten = self._described_so_far.rewritten
        if message.rewritten is not None:
            rewritten[message.rewritten] = message.casts and rewritten.get(message.rewritten, True)
        unfit: dict[TableName, PgetlError] = {}
        for table in message.tables:
            route = self._routes.of_relation(table.oid)
            if route is not None and owns(route.table, commit_lsn):
                leaves = [one for one in message.tables if table.oid in one.ancestors]
                why = self._described(route, Description(table, leaves, rewritten), commit_lsn)
                if why is not None:
                    self._unfit[table.oid] = _LookedAt(route.copied, why=why.message)
                    unfit[route.table] = why
        if message.tables:
            rewritten.clear()
        return unfit

    def _described(self, route: Route, description: Description, commit_lsn: CommitLsn) -> PgetlError | None:
        """Stores the version that a transaction leads to with the command that is described; each further command of
        the transaction replaces it. Returns why there cannot be one. What of the replica identity has changed is left
        to the next RELATION message."""
        if not route.versions or route.versions[-1][0].lsn > commit_lsn:
            return None
        first, *later = route.versions  # the first is that of the copy, which may begin with this very transaction
        earlier = [first[1], *(version for start, version in later if start.lsn < commit_lsn)]
        before, steps = earlier[-1], self._described_so_far.steps
        step = steps.get(route.relation, before)
        record = self._context.store.tables().get(route.table)
        selection = None if record is None else record.selection
        now = description.published(step, None if selection is None else selection.columns)
        found = differences(step, now)
        planned: Plan = Altered(step)
        if other_columns(step, now):
            planned = self._plan_described([*earlier, step], now, description)
        elif names := [name for name, form in now.columns.items() if _is_another(step, name, form)]:
            planned = Unclear(f"{', '.join(names)} was dropped and added again")
        if description.is_rewritten and not description.casts and isinstance(planned, Altered):
            planned, found = Unclear(), [*found, COMPUTED_ANEW]
        if isinstance(planned, Altered):
            schema = steps[route.relation] = loosened(planned.schema, description.nullable)
            if schema == (route.schema if len(earlier) < len(route.versions) else before):
                return None
            admitted = self._admitted(route, earlier, schema)
            if not isinstance(admitted, Unclear) and route.copied.lsn < commit_lsn:
                self._store(route, before, admitted, commit_lsn)
                return None
            begun = Unclear("it was altered in the transaction with which its copy begins")
            planned = admitted if isinstance(admitted, Unclear) else begun
        why = planned.why if isinstance(planned, Unclear) else None
        return changed_at_source(route.table, before.table, found, why)

    def _plan_described(
        self, versions: Sequence[TableSchema], now: PublishedDescription, description: Description
    ) -> Plan:
        """`versions`: those from before the transaction, which may be read again and so be known already, and the one
        that its commands have led to so far."""
        before = versions[-1]
        types: Mapping[int, PgType] = {}
        if unknown := description.types(before):
            with self._context.source.session(self._name) as session:
                types = session.types(unknown)
        present = description.present(before, types)
        if present is None:
            return Unclear("a type was dropped since")
        highest = max(column.number for version in versions for column in version.columns)
        planned = plan(before, now, present, highest)
        if isinstance(planned, Altered):
            return Altered(replace(planned.schema, files=description.files(before)))
        return Unclear("its description contradicts itself") if isinstance(planned, NotYetVisible) else planned

    # -- tables that the catalog shows

    def _looked_at(self, route: Route, commit_lsn: CommitLsn, xid: int) -> _LookedAt:
        """Returns what the catalog shows of the table, at or after this transaction. The first look of a connection is
        one at all tables, so that those that were changed before it cost no more. A transaction that other sessions do
        not see yet is waited for a moment; if that is not enough, the next transaction of the table looks again."""
        known = self._looked.get(route.relation)
        if known is not None and known.is_of(route) and (known.look is None or known.look.shows(commit_lsn, xid)):
            return known
        relations = [route.relation] if self._looked else self._routes.relations()
        until = self._context.runtime.monotonic() + _SHOWN_SECONDS
        while True:
            self._look(relations)
            found = self._looked[route.relation]
            if found.look is None or found.look.shows(commit_lsn, xid) or self._context.runtime.monotonic() > until:
                return found
            self._context.runtime.sleep(_LOOK_SECONDS)

    def _look(self, relations: Sequence[int]) -> None:
        routes = [route for route in map(self._routes.of_relation, relations) if route is not None]
        numbered = [route for route in routes if route.versions and any(one.number for one in route.schema.columns)]
        self._looked.update((route.relation, _LookedAt(route.copied)) for route in routes)
        if not numbered:
            return
        with self._context.source.session(self._name) as session:
            look = session.look([route.relation for route in numbered])
        for route in numbered:
            marks, (_, latest) = look.tables.get(route.relation), route.versions[-1]
            if marks is None:
                self._looked[route.relation] = _LookedAt(route.copied, look)
                continue
            loose = loosened(latest, marks.nullable)
            why = hidden_change(latest, marks)
            self._looked[route.relation] = _LookedAt(route.copied, look, why, None if loose == latest else loose)

    def _changed(self, route: Route, now: PublishedDescription, commit_lsn: CommitLsn) -> Route:
        """Stores the version that the change leads to, and returns the route under it."""
        planned = self._plan(route, now)
        match planned:
            case NotYetVisible():
                if not self._may_wait(route.relation):
                    return replace(route, unfit="its ALTER does not show in the catalog")
                message = f"An ALTER of {written(route.table)} is not visible at the source yet."
                raise PgetlError(ErrorKind.CONNECTION, message)
            case Unclear(why):
                return replace(route, unfit=why)
            case Altered(schema):
                pass
        admitted = self._admitted(route, [version for _, version in route.versions], schema)
        if isinstance(admitted, Unclear):
            return replace(route, unfit=admitted.why)
        self._awaited.pop(route.relation, None)
        self._store(route, route.schema, admitted, commit_lsn)
        return self._routes.of_relation(route.relation) or route

    def _store(self, route: Route, before: TableSchema, schema: TableSchema, commit_lsn: CommitLsn) -> None:
        reach("schema.storing")
        self._context.store.store_schema(route.table, Boundary(commit_lsn), replace(schema, table=route.table))
        reach("schema.stored")
        self._forget_old(route)
        self._routes.refresh(self._context.store, [route.table])
        words = f"{written(route.table)} was altered at {format_lsn(commit_lsn)}: {changes_between(before, schema)}."
        self._context.observer(Noted("info", words, route.table))

    def _forget_old(self, route: Route) -> None:
        """Deletes the oldest versions, if there are many, as far as the table's position is beyond them."""
        position = self._positions.get(route.table, START)
        surplus = route.versions[: max(0, len(route.versions) - KEPT)]
        following = [start for start, _ in route.versions[1:]]
        old = [start for (start, _), until in zip(surplus, following, strict=False) if until < position]
        if old:
            self._context.store.forget_schemas(route.table, old)

    def _may_wait(self, relation: int) -> bool:
        """Whether an ALTER that is not visible yet may be waited for: a commit waits for standbys without a bound, but
        the other tables wait with it."""
        now = self._context.runtime.monotonic()
        return now < self._awaited.setdefault(relation, now) + VISIBLE_SECONDS

    def _plan(self, route: Route, now: PublishedDescription) -> Plan:
        if not other_columns(route.schema, now):
            return Unclear()
        with self._context.source.session(self._name) as session:
            present = session.present_table(route.relation)
        highest = max(column.number for _, version in route.versions for column in version.columns)
        return plan(route.schema, now, present, highest)

    def _admitted(self, route: Route, earlier: Sequence[TableSchema], schema: TableSchema) -> TableSchema | Unclear:
        """Returns the version as it may be stored after the earlier ones, or why it may not."""
        try:
            if self._context.transforms is not None:
                schema = self._context.transforms.altered(route.table, earlier[-1], schema)
        except PgetlError as error:
            return Unclear(error.message.rstrip("."))
        why = self._refused(route, earlier, schema)
        return schema if why is None else Unclear(why)

    def _refused(self, route: Route, earlier: Sequence[TableSchema], schema: TableSchema) -> str | None:
        """Returns why the destination cannot have the version after the earlier ones; None if it can."""
        schema = replace(schema, table=route.schema.table)
        target, versions = Target(self._context.pipeline, schema, 0), (*earlier, schema)
        gone = tuple(column.name for column in alterations(earlier[-1], schema).dropped) if route.drops else ()
        with self._context.destination(self._name) as destination:
            if not isinstance(destination, SchemaChanges):
                return NO_ABILITY
            return destination.why_not(SchemaChange(target, versions, gone))


def _is_another(schema: TableSchema, name: str, form: ColumnForm) -> bool:
    """Whether the name belongs to another column than in the schema."""
    return any(one.name == name and one.number and one.number != form.number for one in schema.columns)


def _in_force(route: Route, now: PublishedDescription, commit_lsn: CommitLsn) -> Route | None:
    """Returns the route under the version that fits a description in this transaction; None if the table has changed.
    In the transaction from which a version is valid, the version before it is in force as well, and of the columns that
    the version adds some may not be there yet."""
    versions = [version for version in route.versions if version[0].lsn <= commit_lsn] or list(route.versions[:1])
    if not versions:
        return route if not differences(route.schema, now) else None
    valid_from, latest = versions.pop()
    if not differences(latest, now):
        return route.under(latest)
    if valid_from.lsn < commit_lsn or not versions:
        return None
    _, before = versions[-1]
    if not differences(before, now):
        return route.under(before)
    between = replace(latest, columns=tuple(column for column in latest.columns if column.name in now.columns))
    is_between = set(before.names) <= set(between.names) and not differences(between, now)
    return route.under(between) if is_between else None
