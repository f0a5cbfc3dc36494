"""Room for one more copy, for those who copy one table's group at a time and do not know of each other.

`pgetl run` has a pool that begins all copies; an orchestrator has a task per table, several of which may look at once.
So whoever wants to copy begins an attempt first, and looks then: of those that began, the earliest have room. The
attempt lives while the reservation is entered, and the tables of its group are in DataSync under it before anything is
started, so that nobody else begins with the same ones while Spark is still starting.

A reservation that is left, however it is left, ends its attempt. What was not copied by then counts as a copy that
died, and goes back to Init.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_pgetl.engine.source import preflight
from airflow_provider_pgetl.engine.sync import upkeep
from airflow_provider_pgetl.engine.sync.copying.claims import Claims
from airflow_provider_pgetl.engine.sync.copying.groups import form_groups
from airflow_provider_pgetl.engine.sync.copying.heartbeat import ATTEMPT_SECONDS, Heartbeat
from airflow_provider_pgetl.engine.sync.copying.job import CopyJob
from airflow_provider_pgetl.engine.sync.desk import states_of
from airflow_provider_pgetl.engine.sync.pausing import is_paused
from airflow_provider_pgetl.engine.sync.prepare import copy_of, roll_back_dead_copies, size_of
from airflow_provider_pgetl.engine.sync.site import Site
from airflow_provider_pgetl.engine.tables import TableName


@contextmanager
def reserved_copy(site: Site, table: TableName) -> Iterator[CopyJob | None]:
    """The job of the group that this table belongs to, its tables claimed; None if there is no room, or the table is
    not in Init any more."""
    site.store.load()
    roll_back_dead_copies(site)
    attempt = site.store.start_attempt(ATTEMPT_SECONDS, site.runtime.process())
    try:
        with Heartbeat(site.store, attempt, runtime=site.runtime):
            yield _job(site, table, attempt) if _has_room(site, attempt) else None
    finally:
        site.store.end_attempt(attempt)
        site.store.load()
        roll_back_dead_copies(site)


def _has_room(site: Site, attempt: int) -> bool:
    """A pause that begins after the attempt has, finds a copy that has begun."""
    live = site.store.live_attempts()
    site.store.load()
    if is_paused(site.store):
        return False
    return upkeep.groups_before(attempt, states_of(site.store), live) < site.spec.copy.table_workers


def _job(site: Site, table: TableName, attempt: int) -> CopyJob | None:
    with site.connect("groups") as connection:
        found = {one.table: one for one in preflight.survey(connection, site.spec).candidates}
    waiting = [one for one in upkeep.tables_to_copy(states_of(site.store)) if one in found]
    sizes = {one: size_of(found[one]) for one in waiting}
    group = next((group for group in form_groups(sizes, site.spec.copy.group_bytes) if table in group), ())
    claims = Claims(site.store, attempt, site.observer, runtime=site.runtime)
    claims.start(group)
    if not claims.holds(table):
        return None
    tables = tuple(copy_of(site, found[one]) for one in group if claims.holds(one))
    return CopyJob(site.spec, tables, attempt=attempt)
