"""The lineage of the source that is present, asked of the server itself. What it means is in `engine.lineage`."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import pq

from airflow_provider_pgetl.engine.lineage import Lineage
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.source.connecting import Connection, command, server_errors


@dataclass(frozen=True, slots=True)
class Present:
    """The source as it is now: its lineage, and how far its WAL reaches."""

    lineage: Lineage
    wal_end: Boundary


def read_lineage(replication: pq.abc.PGconn, connection: Connection, publication: str) -> Present:
    """Ask over both kinds of session. A publication that does not exist has the OID 0."""
    ((system, timeline, wal_end, _),) = command(replication, "IDENTIFY_SYSTEM", "The source did not identify itself")
    number = int(str(timeline))
    points = _switch_points(replication, number) if number > 1 else ()
    database, publication_oid = _oids(connection, publication)
    lineage = Lineage(str(system), number, points, database, publication_oid)
    return Present(lineage, Boundary.parse(str(wal_end)))


def parse_history(text: str) -> tuple[tuple[int, Boundary], ...]:
    """A timeline history file: lines of timeline, the position at which it was left, and a reason."""
    lines = (line.split(None, 2) for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    return tuple((int(fields[0]), Boundary.parse(fields[1])) for fields in lines)


def _switch_points(replication: pq.abc.PGconn, timeline: int) -> tuple[tuple[int, Boundary], ...]:
    complaint = "The source's timelines could not be read"
    ((_, content),) = command(replication, f"TIMELINE_HISTORY {timeline}", complaint)
    return parse_history(content or "")


def _oids(connection: Connection, publication: str) -> tuple[int, int]:
    with server_errors("The publication could not be read"):
        row = connection.execute(_OIDS, [publication]).fetchone()
    assert row is not None, "the database that is connected to is there"
    return int(row[0]), int(row[1] or 0)


_OIDS = """
select oid::int8, (select oid::int8 from pg_publication where pubname = %s)
from pg_database where datname = current_database()
"""
