"""The lineage of the source that is present, asked of the server itself. What it means is in `engine.lineage`."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import pq
from psycopg.pq import Escaping

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.lineage import Lineage, compare
from airflow_provider_pgetl.engine.positions import START, Boundary
from airflow_provider_pgetl.engine.source.connecting import Connection, command, server_errors


@dataclass(frozen=True, slots=True)
class Present:
    """The source as it is now: its lineage, how far its WAL reaches, whether it is a standby, and when its server was
    started (microseconds since 1970)."""

    lineage: Lineage
    wal_end: Boundary
    standby: bool = False
    server: int = 0

    def difference(self, recorded: Lineage, furthest: Boundary, confirmed: Boundary = START) -> str | None:
        """Why this is not what was recorded, as `compare` says. A standby that was restarted may stand before what it
        has sent, and comes there again: that is passing trouble."""
        behind = self.standby and self.wal_end < furthest
        why = compare(recorded, self.lineage, furthest, furthest if behind else self.wal_end, confirmed)
        if why is None and behind:
            message = f"The source is a standby that has replayed {self.wal_end} only; {furthest} was seen already."
            raise PgetlError(ErrorKind.CONNECTION, message, remedy="Wait until it has caught up with its primary.")
        return why

    def is_set_back(self, recorded: Lineage, furthest: Boundary) -> bool:
        """Whether it is the same server as it was before. Its WAL comes as far again by and by: this is to be noted,
        for nothing that could be asked shows it then."""
        return not self.standby and self.lineage.system == recorded.system and self.wal_end < furthest


def read_lineage(replication: pq.abc.PGconn, publication: str) -> Present:
    """Ask over a session for replication. A publication that does not exist has the OID 0."""
    ((system, timeline, wal_end, _),) = command(replication, "IDENTIFY_SYSTEM", "The source did not identify itself")
    number = int(str(timeline))
    points = _switch_points(replication, number) if number > 1 else ()
    name = Escaping(replication).escape_literal(publication.encode()).decode()
    ((database, oid, standby, server),) = command(
        replication, _OIDS.format(name=name), "The publication could not be read"
    )
    lineage = Lineage(str(system), number, points, int(str(database)), int(oid or 0))
    return Present(lineage, Boundary.parse(str(wal_end)), standby == "t", int(str(server)))


def parse_history(text: str) -> tuple[tuple[int, Boundary], ...]:
    """A timeline history file: lines of timeline, the position at which it was left, and a reason."""
    lines = (line.split(None, 2) for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    return tuple((int(fields[0]), Boundary.parse(fields[1])) for fields in lines)


def _switch_points(replication: pq.abc.PGconn, timeline: int) -> tuple[tuple[int, Boundary], ...]:
    complaint = "The source's timelines could not be read"
    ((_, content),) = command(replication, f"TIMELINE_HISTORY {timeline}", complaint)
    return parse_history(content or "")


def flushed_position(connection: Connection) -> Boundary:
    """Where the source's WAL ends durably; what is inserted beyond may never be reported by a keepalive."""
    with server_errors("The source's position could not be read"):
        row = connection.execute(_FLUSHED).fetchone()
    return Boundary.parse(row[0]) if row else START


_FLUSHED = """
select (case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_flush_lsn() end)::text
"""

_OIDS = """
select oid, (select oid from pg_publication where pubname = {name}), pg_is_in_recovery(),
       (extract(epoch from pg_postmaster_start_time()) * 1000000)::int8
from pg_database where datname = current_database()
"""


def inserted_position(connection: Connection) -> Boundary:
    """A stream that is here has brought every transaction that has changed a table's file by now. It comes as far
    without further writes."""
    with server_errors("The source's position could not be read"):
        row = connection.execute(_INSERTED).fetchone()
    return Boundary.parse(row[0]) if row else START


# Not where the WAL is flushed: whoever commits asynchronously is seen to have committed before that. The position at
# which the next record is inserted may lie behind a page's header, of at most 40 bytes, up to which no stream comes
# before there is such a record. The commit of a transaction that changes a table's file is longer than that.
_INSERTED = """
select (
    case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_insert_lsn() - 40::numeric end
)::text
"""
