"""What `check` looks at: the same things, in the same order, that `run` would refuse, and nothing is changed.

A server that cannot be reached is a finding like any other, so that one mistake does not hide what is wrong elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from airflow_provider_pgetl.engine.config import DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.destinations.protocol import Destination
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.findings import Finding, errors_of
from airflow_provider_pgetl.engine.source import preflight
from airflow_provider_pgetl.engine.source.connecting import connect, connect_replication, worker_name
from airflow_provider_pgetl.engine.source.lineage import flushed_position
from airflow_provider_pgetl.engine.source.publication import foresee_publication
from airflow_provider_pgetl.engine.source.server import ServerFacts, read_server
from airflow_provider_pgetl.engine.source.slots import list_unused
from airflow_provider_pgetl.engine.sync import declared, holding
from airflow_provider_pgetl.engine.sync.fitness import (
    inspect,
    inspect_identity,
    inspect_names,
    inspect_room,
    inspect_table,
)
from airflow_provider_pgetl.engine.sync.owning import expect_own
from airflow_provider_pgetl.engine.sync.pausing import is_paused
from airflow_provider_pgetl.engine.sync.prepare import judge_gaps
from airflow_provider_pgetl.engine.sync.site import Site

# A pipeline that asks no more of a source than any must.
_ANY = PipelineSpec(
    "any",
    (TableSpec("any.table"),),
    SourceSpec("env:SOURCE", manage_publication=False),
    DestinationSpec("memory"),
    state_uri="env:STATE",
)


def look_at_server(uri: str) -> tuple[ServerFacts | None, list[Finding]]:
    """What would keep every pipeline from this source, whatever its tables: the version, settings, free slots and WAL
    senders, the role, a replication session that is not to be had. The facts are None if it cannot be reached."""
    facts, name = None, worker_name("any", "check")
    try:
        with connect(uri, name) as connection:
            facts = read_server(connection, _ANY.id)
            encoding = connection.info.parameter_status("server_encoding") or "UTF8"
        found = [*preflight.judge_server(facts, _ANY), *preflight.judge_encoding(encoding)]
        if not errors_of(found):
            connect_replication(uri, name).finish()
    except PgetlError as error:
        return facts, [Finding.of(error)]
    return facts, found


def look(site: Site) -> list[Finding]:
    """Owner, source, destination, and, of a pipeline that has run before, whether its history has gaps."""
    found = [*_answered(_look_at_owner, site), *_answered(_look_at_source, site)]
    found += _answered(_look_at_destination, site)
    if errors_of(found):
        return found
    found += _answered(_look_at_tables, site)
    if site.store.pipeline().lineage is not None:
        found += _answered(_look_for_gaps, site)
        found += _answered(holding.findings, site)
    return found


def _answered(look_at: Callable[[Site], list[Finding]], site: Site) -> list[Finding]:
    try:
        return look_at(site)
    except PgetlError as error:
        return [Finding.of(error)]


def _look_at_owner(site: Site) -> list[Finding]:
    expect_own(site)
    return [_paused()] if is_paused(site.store) else []


def _paused() -> Finding:
    problem = "The pipeline is paused."
    return Finding(problem, "`pgetl resume FILE` has it go on.", "note")


def _look_at_source(site: Site) -> list[Finding]:
    """Also whether a replication session is to be had, which a pooler may refuse that else is like a server; and what
    is left there of pipelines that are no more, which stands in nobody's way, but fills the disk."""
    with site.connect("check") as connection:
        found = preflight.check(connection, site.spec, site.instance)
        found += preflight.judge_unused(list_unused(connection), site.store.instances(), flushed_position(connection))
    if not errors_of(found):
        site.connect_replication("check").finish()
    return found


def _look_at_destination(site: Site) -> list[Finding]:
    with _opened(site) as destination:
        return inspect(destination)


@contextmanager
def _opened(site: Site) -> Iterator[Destination]:
    destination = site.open_destination("check")
    try:
        yield destination
    finally:
        destination.shutdown()


def _look_at_tables(site: Site) -> list[Finding]:
    """Those that are there in the destination: whose they are, and whether they take what the source would send."""
    with site.connect("check") as connection:
        candidates = preflight.survey(connection, site.spec).candidates
        schemas = preflight.declared_schemas(connection, site.spec, candidates)
        with _opened(site) as destination:
            found = inspect_identity(connection, destination, candidates)
            found = found or inspect_names(destination, candidates)
            return found or inspect_room(site, destination, candidates) + [
                replace(finding, table=str(one.table))
                for one in candidates
                for finding in inspect_table(destination, replace(schemas[one.table], table=one.match.destination))
            ]


def _look_for_gaps(site: Site) -> list[Finding]:
    """What is to be copied anew, and what changes may be missing of the rest."""
    with site.connect("check") as connection:
        candidates = preflight.survey(connection, site.spec).candidates
        publications = foresee_publication(connection, site.spec, site.instance, candidates)
        anew = declared.changed(site, candidates, publications)
        gap = judge_gaps(site, site.over(connection), candidates, publications, streaming=True, anyway=anew).finding()
    return declared.findings(anew) + ([] if gap is None else [gap])
