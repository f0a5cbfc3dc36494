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

A change that cannot be carried over makes the table Errored when its first row is written, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.changes.versions import changes_between
from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.destinations.protocol import SchemaChange, SchemaChanges
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import START, Boundary, CommitLsn, format_lsn
from airflow_provider_pgetl.engine.model.reports import Noted
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema, written
from airflow_provider_pgetl.engine.runtime.processes import reach
from airflow_provider_pgetl.engine.source.alterations import (
    Altered,
    NotYetVisible,
    Plan,
    Unclear,
    other_columns,
    plan,
)
from airflow_provider_pgetl.engine.source.drift import PublishedDescription, differences
from airflow_provider_pgetl.engine.stream.batches import Route, Routes, description
from airflow_provider_pgetl.engine.wal.pgoutput import Relation

KEPT = 20
"""Versions of a table that are kept though no position needs them any more, to be looked at."""
VISIBLE_SECONDS = 15.0
NO_ABILITY = "the destination cannot alter its tables"


class SchemaVersions:
    """The versions under which one connection of a stream reads rows."""

    def __init__(
        self,
        name: str,
        context: PipelineContext,
        routes: Routes,
        positions: Mapping[TableName, Boundary],
        awaited: dict[int, float],
    ) -> None:
        """`positions`: those of the tables in the destination, as they move. `awaited`: since when an ALTER of a
        relation is waited for, over all connections of the stream."""
        self._name = name
        self._awaited = awaited
        self._positions = positions
        self._context = context
        self._routes = routes
        self._judged: dict[int, tuple[Route, Relation, Route]] = {}

    def fitting(self, route: Route, relation: Relation, commit_lsn: CommitLsn) -> Route:
        """Returns the table's route for rows that were sent under this description in this transaction. Stores a new
        version if there is none that fits. `Route.unfit` says why, if there cannot be one."""
        known = self._judged.get(relation.oid)
        if known is not None and known[0] is route and known[1] is relation:
            return known[2]
        now = description(relation)
        found = _in_force(route, now, commit_lsn)
        if found is None:
            found = self._changed(route, now, commit_lsn)
            route = self._routes.of_relation(relation.oid) or route
        if not route.is_altered or commit_lsn > route.versions[-1][0].lsn:
            self._judged[relation.oid] = route, relation, found
        return found

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
        try:
            if self._context.transforms is not None:
                schema = self._context.transforms.altered(route.table, route.schema, schema)
        except PgetlError as error:
            return replace(route, unfit=error.message.rstrip("."))
        if (why := self._refused(route, schema)) is not None:
            return replace(route, unfit=why)
        reach("schema.storing")
        self._context.store.store_schema(route.table, Boundary(commit_lsn), replace(schema, table=route.table))
        reach("schema.stored")
        self._awaited.pop(route.relation, None)
        self._forget_old(route)
        self._routes.refresh(self._context.store, [route.table])
        words = (
            f"{written(route.table)} was altered at {format_lsn(commit_lsn)}: {changes_between(route.schema, schema)}."
        )
        self._context.observer(Noted("info", words, route.table))
        return self._routes.of_relation(route.relation) or route

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

    def _refused(self, route: Route, schema: TableSchema) -> str | None:
        """Returns why the destination cannot have the version; None if it can. A name may not pass from one column to
        another: the destination may still have the former one."""
        numbers = {column.name: column.number for column in schema.columns}
        for _, version in route.versions:
            for column in version.columns:
                if column.number and numbers.get(column.name, column.number) != column.number:
                    return f"{column.name} was dropped and added again"
        target = Target(self._context.pipeline, schema, 0)
        versions = (*(version for _, version in route.versions), schema)
        with self._context.destination(self._name) as destination:
            if not isinstance(destination, SchemaChanges):
                return NO_ABILITY
            return destination.why_not(SchemaChange(target, versions))


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
