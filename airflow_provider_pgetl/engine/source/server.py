"""Facts about the source's server and the session's role; lineage and positions; the mark for the same-database
check."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg import pq
from psycopg.pq import Escaping

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import START, Boundary, Lineage, compare
from airflow_provider_pgetl.engine.postgres.sessions import STANDBYS_MISSING, Mark, Primary
from airflow_provider_pgetl.engine.source.connecting import Connection, command, server_errors, worker_name
from airflow_provider_pgetl.engine.source.slots import SlotName


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Settings and usage of the server. `used_slots` and `used_walsenders` do not include the pipeline's own. A setting
    that the server's version does not have is None."""

    version: int
    used_slots: int
    role: str
    may_replicate: bool
    standby: bool
    wal_level: str
    max_slots: int
    max_walsenders: int
    used_walsenders: int
    slot_wal_megabytes: int
    slot_idle_seconds: int | None
    synchronized_standby_slots: str | None
    hot_standby_feedback: bool
    synchronous_standby_names: str
    standbys_missing: int
    unknown_standby_slots: str | None
    slots_are_synchronised: bool

    @property
    def major(self) -> int:
        return self.version // 10000

    @property
    def minor(self) -> int:
        return self.version % 10000


def read_server(connection: Connection, pipeline: str) -> ServerFacts:
    """Reads the facts; no privilege is needed."""
    with server_errors("The server's settings could not be read"):
        (row,) = connection.execute(_FACTS, [worker_name(pipeline, "")]).fetchall()
        slots = [name for (name,) in connection.execute("select slot_name::text from pg_replication_slots")]
    return ServerFacts(connection.info.server_version, _count_others(slots, pipeline), *row)


def _count_others(slots: Sequence[str], pipeline: str) -> int:
    parsed = [SlotName.parse(name) for name in slots]
    return sum(1 for name in parsed if name is None or name.pipeline != pipeline)


# pg_settings has numbers in each setting's base unit, where current_setting() prints them with a unit.
_FACTS = f"""
select current_user::text,
       (select rolreplication or rolsuper from pg_roles where rolname = current_user)
       or exists (select from pg_roles where rolname = 'rds_replication' and pg_has_role(oid, 'MEMBER')),
       pg_is_in_recovery(),
       current_setting('wal_level'),
       current_setting('max_replication_slots')::int,
       current_setting('max_wal_senders')::int,
       (select count(*)::int from pg_stat_replication
        where not coalesce(starts_with(application_name, %s), false)),
       (select setting::int from pg_settings where name = 'max_slot_wal_keep_size'),
       (select setting::int from pg_settings where name = 'idle_replication_slot_timeout'),
       current_setting('synchronized_standby_slots', true),
       current_setting('hot_standby_feedback')::bool,
       current_setting('synchronous_standby_names'),
       coalesce(({STANDBYS_MISSING}), 0),
       (select string_agg(trim(name), ', ')
        from unnest(string_to_array(nullif(current_setting('synchronized_standby_slots', true), ''), ',')) as name
        where not exists (select from pg_replication_slots
                          where slot_name = trim(name) and slot_type = 'physical' and active)),
       exists (select from pg_stat_activity where application_name like '%%slotsync worker')
"""


# -- The lineage of the present source, as its server reports it. `model.positions` says what it means. ----------------


@dataclass(frozen=True, slots=True)
class Present:
    """The source as it is now: its lineage, the end of its WAL, whether it is a standby, and when its server was
    started (microseconds since 1970)."""

    lineage: Lineage
    wal_end: Boundary
    standby: bool = False
    server: int = 0

    def difference(self, recorded: Lineage, furthest: Boundary, confirmed: Boundary = START) -> str | None:
        """Why this is not the recorded source, as `compare` says; None if it is. A standby that was restarted may be
        before a position up to which it has sent already, and reaches it again: that is a transient error."""
        behind = self.standby and self.wal_end < furthest
        why = compare(recorded, self.lineage, furthest, furthest if behind else self.wal_end, confirmed)
        if why is None and behind:
            message = f"The source is a standby that has replayed {self.wal_end} only; {furthest} was seen already."
            raise PgetlError(ErrorKind.CONNECTION, message, remedy="Wait until it has caught up with its primary.")
        return why

    def is_set_back(self, recorded: Lineage, furthest: Boundary) -> bool:
        """Whether this is the recorded server at an earlier position. This must be recorded: when its WAL has reached
        the former position again, no query shows it any more."""
        return not self.standby and self.lineage.system == recorded.system and self.wal_end < furthest


def read_lineage(replication: pq.abc.PGconn, publication: str) -> Present:
    """Reads the lineage over a replication session. A publication that does not exist has the OID 0."""
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
    """Parses a timeline history file: lines of timeline, the position at which it was left, and a reason."""
    lines = (line.split(None, 2) for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    return tuple((int(fields[0]), Boundary.parse(fields[1])) for fields in lines)


def _switch_points(replication: pq.abc.PGconn, timeline: int) -> tuple[tuple[int, Boundary], ...]:
    complaint = "The source's timelines could not be read"
    ((_, content),) = command(replication, f"TIMELINE_HISTORY {timeline}", complaint)
    return parse_history(content or "")


def flushed_position(connection: Connection) -> Boundary:
    """The position up to which the source's WAL is durable; what is inserted beyond it may never be reported by a
    keepalive."""
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
    """A position by which a stream has sent every transaction that has changed a table's file by now. A stream reaches
    it without further writes."""
    with server_errors("The source's position could not be read"):
        row = connection.execute(_INSERTED).fetchone()
    return Boundary.parse(row[0]) if row else START


# Not the position up to which the WAL is flushed: a transaction that commits asynchronously is visible before that. The
# position at which the next record is inserted may lie behind a page's header, of at most 40 bytes, which no stream
# passes before there is such a record. The commit of a transaction that changes a table's file is longer than that.
_INSERTED = """
select (
    case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_insert_lsn() - 40::numeric end
)::text
"""


# -- Marking the source's database, so that the destination can tell whether it is the same one. -----------------------

_KEY_BITS = 63


@contextmanager
def marked(connection: Connection) -> Iterator[Mark]:
    """Marks the database until the context is left, or the session ends."""
    key = secrets.randbits(_KEY_BITS)
    with server_errors("The source could not be told from the destination"):
        primary = _primary(connection)
        connection.execute("select pg_advisory_lock(%s::int8)", [key])
    try:
        yield Mark(key, primary)
    finally:
        with server_errors("The source could not be told from the destination"):
            connection.execute("select pg_advisory_unlock(%s::int8)", [key])


def _primary(connection: Connection) -> Primary | None:
    """The primary's database if the source is a standby. Only a standby is queried for it, because not every role may
    read it."""
    (standby,) = connection.execute("select pg_is_in_recovery()").fetchone() or (False,)
    if not standby:
        return None
    row = connection.execute(_PRIMARY).fetchone()
    assert row is not None, "there is one line of each"
    return Primary(str(row[0]), int(row[1]), int(row[2]))


_PRIMARY = """
select s.system_identifier::text, c.timeline_id::int8, d.oid::int8
from pg_control_system() s, pg_control_checkpoint() c, pg_database d where d.datname = current_database()
"""
