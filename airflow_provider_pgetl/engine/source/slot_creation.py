"""How a slot comes to be.

The server first waits until every transaction that is writing, in *any* of its databases, has ended: no row may
be half in the snapshot and half in the stream. So the wait is bounded, and whoever made it too long is named.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import pq

from airflow_provider_pgetl.engine.copy_out import readable
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.source.connecting import (
    Connection,
    result_error,
    rows_of,
    server_errors,
)

_OPTION_LIST_SINCE = 150000
_CANCEL_SECONDS = 10.0

_TURNED_AWAY = {
    b"42710": (ErrorKind.SLOT_IN_USE, "Drop that slot if nobody uses it any more."),
    b"53400": (ErrorKind.RESOURCES, "Raise max_replication_slots (needs a restart), or drop slots that nobody uses."),
    b"55000": (ErrorKind.PREFLIGHT, "Set wal_level = logical on the source (needs a restart)."),
    b"42501": (ErrorKind.PRIVILEGE, "Give the role the REPLICATION attribute."),
}


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """`snapshot` can be imported for as long as the session that made the slot does nothing else."""

    name: str
    consistent_point: Boundary
    snapshot: str | None


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction that a new slot has to wait for."""

    who: str
    database: str
    since: str

    def __str__(self) -> str:
        return f"{self.who} in database {self.database}, since {self.since}"


def create_slot(
    replication: pq.abc.PGconn,
    watcher: Connection,
    name: str,
    *,
    export_snapshot: bool = False,
    failover: bool = False,
    temporary: bool = False,
    patience: float = 60.0,
) -> CreatedSlot:
    """Make a logical slot for pgoutput on a replication session. A temporary one is gone when the session has ended.

    After `patience` seconds of waiting for others the slot is given up, nothing is left of it, and the error names
    those whom it waited for, as seen through `watcher`. The replication session stays usable.
    """
    blockers: Sequence[Blocker] | None = None
    with server_errors(f"The slot {name} could not be created"):
        command = _command(name, export_snapshot, failover, temporary, replication.server_version)
        replication.send_query(command.encode())
        if not _answered(replication, patience):
            blockers = find_blockers(watcher, replication.backend_pid)
            _cancel(replication)
        result = _result(replication)
    if blockers is not None and result.status != pq.ExecStatus.TUPLES_OK:
        raise _waited_in_vain(name, blockers, patience)
    return _created(name, result)


def find_blockers(watcher: Connection, walsender: int) -> tuple[Blocker, ...]:
    """Whom the slot creation of this process has to wait for, oldest first."""
    with server_errors("Open transactions could not be listed"):
        rows = watcher.execute(_BLOCKERS, {"walsender": walsender}).fetchall()
    return tuple(Blocker(*row) for row in rows)


def _command(name: str, export_snapshot: bool, failover: bool, temporary: bool, version: int) -> str:
    create = f"CREATE_REPLICATION_SLOT {name}{' TEMPORARY' if temporary else ''} LOGICAL pgoutput"
    if version < _OPTION_LIST_SINCE:
        return f"{create} {'' if export_snapshot else 'NO'}EXPORT_SNAPSHOT"
    options = f"SNAPSHOT '{'export' if export_snapshot else 'nothing'}'" + (", FAILOVER" if failover else "")
    return f"{create} ({options})"


def _created(name: str, result: pq.abc.PGresult) -> CreatedSlot:
    complaint = f"The slot {name} could not be created"
    kind_and_remedy = _TURNED_AWAY.get(result.error_field(pq.DiagnosticField.SQLSTATE) or b"")
    if kind_and_remedy:
        kind, remedy = kind_and_remedy
        raise PgetlError(kind, result_error(result, complaint).message, remedy=remedy)
    ((_, point, snapshot, _),) = rows_of(result, complaint)
    return CreatedSlot(name, Boundary.parse(str(point)), snapshot)


def _answered(replication: pq.abc.PGconn, patience: float) -> bool:
    """Wait for the command's answer; False when time is up."""
    deadline = time.monotonic() + patience
    while replication.is_busy():
        if not readable(replication, deadline - time.monotonic()):
            return False
        replication.consume_input()
    return True


def _cancel(replication: pq.abc.PGconn) -> None:
    replication.cancel_conn().blocking()
    if not _answered(replication, _CANCEL_SECONDS):
        # The server ends a session whose client is gone; with it goes the unfinished slot.
        replication.finish()
        raise PgetlError(ErrorKind.CONNECTION, "The source did not take back the creation of a slot in time.")


def _result(replication: pq.abc.PGconn) -> pq.abc.PGresult:
    """The command's one result; the session is then ready for the next."""
    first = replication.get_result()
    if first is None:
        raise PgetlError(ErrorKind.CONNECTION, "The replication session gave no answer.")
    while replication.get_result() is not None:
        pass
    return first


def _waited_in_vain(name: str, blockers: Sequence[Blocker], patience: float) -> PgetlError:
    message = f"The slot {name} could not be created within {patience:g} s"
    if not blockers:
        remedy = "On a standby, call pg_log_standby_snapshot() on its primary; else try again when less is written."
        return PgetlError(ErrorKind.RESOURCES, f"{message}.", remedy=remedy)
    named = "; ".join(str(blocker) for blocker in blockers)
    remedy = "End these transactions, or wait until they are over."
    return PgetlError(ErrorKind.RESOURCES, f"{message}: it waits for open transactions: {named}.", remedy=remedy)


# Of sessions that we may not look into little but the process is shown; they are named if the walsender waits for them.
_BLOCKERS = """
with waiting as (
    select query_start from pg_stat_activity where pid = %(walsender)s
), open as (
    select format('process %%s (%%s, user %%s)', a.pid, coalesce(nullif(a.application_name, ''), 'no application name'),
                  coalesce(a.usename, '?')) as who,
           coalesce(a.datname, '?') as database, a.xact_start as since
    from pg_stat_activity a
    where a.pid not in (%(walsender)s, pg_backend_pid())
    and (a.pid = any(pg_blocking_pids(%(walsender)s))
         or a.backend_xid is not null and a.xact_start <= (select query_start from waiting))
    union all
    select format('prepared transaction %%L (user %%s)', p.gid, p.owner), p.database, p.prepared
    from pg_prepared_xacts p
)
select who, database, coalesce(to_char(since, 'YYYY-MM-DD HH24:MI:SS TZ'), 'an unknown time')
from open order by since
"""
