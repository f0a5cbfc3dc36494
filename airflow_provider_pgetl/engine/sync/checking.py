"""What `check` looks at: the same things that `prepare` would refuse, and nothing is changed."""

from __future__ import annotations

from airflow_provider_pgetl.engine.findings import Finding
from airflow_provider_pgetl.engine.source import preflight
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.publication import publication_names
from airflow_provider_pgetl.engine.source.published import read_publications
from airflow_provider_pgetl.engine.sync.fitness import inspect
from airflow_provider_pgetl.engine.sync.prepare import judge_gaps
from airflow_provider_pgetl.engine.sync.site import Site


def look_at_source(site: Site, connection: Connection) -> list[Finding]:
    """The preflight; and, of a pipeline that has run before, whether its history has gaps."""
    found = preflight.check(connection, site.spec, site.instance)
    if any(finding.severity == "error" for finding in found) or site.store.pipeline().lineage is None:
        return found
    return found + _look_for_gaps(site, connection)


def look_at_destination(site: Site) -> list[Finding]:
    destination = site.open_destination("check")
    try:
        return inspect(destination)
    finally:
        destination.shutdown()


def _look_for_gaps(site: Site, connection: Connection) -> list[Finding]:
    candidates = preflight.survey(connection, site.spec).candidates
    publications = read_publications(connection, publication_names(site.spec))
    found = judge_gaps(site, connection, candidates, publications, streaming=True).finding()
    return [] if found is None else [found]
