"""Replication slots: creation, names, inspection, release, removal.

A slot retains WAL, so that an unused slot harms the source: the code that creates a slot has to drop it. Nothing here
decides which slots are needed. All functions take the full name of a slot; `list_slots` finds those of one pipeline and
instance by parsing names, never by a prefix.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import LiteralString

import psycopg
from psycopg import pq

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.results import SlotStatus
from airflow_provider_pgetl.engine.postgres.copy_format import readable
from airflow_provider_pgetl.engine.source.connecting import (
    Connection,
    result_error,
    rows_of,
    server_errors,
)

# -- Creation of a slot. -----------------------------------------------------------------------------------------------
#
# The server first waits until every transaction that is writing, in *any* of its databases, has ended: no row may be
# half in the snapshot and half in the stream. So the wait is bounded, and the error names the transactions that made it
# too long.

_OPTION_LIST_SINCE = 150000
_CANCEL_SECONDS = 10.0

_TURNED_AWAY = {
    b"42710": (ErrorKind.SLOT_IN_USE, "Drop that slot if it is not used any more."),
    b"53400": (ErrorKind.RESOURCES, "Raise max_replication_slots (needs a restart), or drop slots that are not used."),
    b"55000": (ErrorKind.PREFLIGHT, "Set wal_level = logical on the source (needs a restart)."),
    b"42501": (ErrorKind.PRIVILEGE, "Give the role the REPLICATION attribute."),
}


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """A new slot. `snapshot` can be imported for as long as the session that created the slot does nothing else."""

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
    """Creates a logical slot for pgoutput over a replication session. The server drops a temporary one when the session
    ends.

    If the server waits for other transactions for more than `patience` seconds, the creation is cancelled, nothing is
    left of the slot, and the error names those transactions, as seen through `watcher`. The replication session stays
    usable.
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
    """The transactions that the slot creation of the process `walsender` has to wait for, oldest first."""
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
    """Waits for the command's result; returns False on timeout."""
    deadline = time.monotonic() + patience
    while replication.is_busy():
        if not readable(replication, deadline - time.monotonic()):
            return False
        replication.consume_input()
    return True


def _cancel(replication: pq.abc.PGconn) -> None:
    replication.cancel_conn().blocking()
    if not _answered(replication, _CANCEL_SECONDS):
        # The server ends a session whose client has disconnected, and drops the unfinished slot.
        replication.finish()
        raise PgetlError(ErrorKind.CONNECTION, "The source did not take back the creation of a slot in time.")


def _result(replication: pq.abc.PGconn) -> pq.abc.PGresult:
    """The command's one result; the session is then ready for the next command."""
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


# For sessions whose details the role may not read, little but the process id is shown; they are listed if the walsender
# waits for them.
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


# -- Names of slots, and their parsing. Pure. --------------------------------------------------------------------------
#
# ``pgetl_<pipeline>_<instance>_apply`` and ``pgetl_<pipeline>_<instance>_c<attempt>``. A pipeline's name may contain
# underscores, an instance may not, so that a name is parsed from its end in exactly one way: the slots of pipeline
# ``shop`` are never those of ``shop_eu``. A name that does not parse into parts from which it would be composed again
# is not a name of pgetl.

MAX_BYTES = 63
_PIPELINE = re.compile(r"[a-z0-9_]+")
_INSTANCE = re.compile(r"[a-z0-9]+")
_NAME = re.compile(r"pgetl_([a-z0-9_]+)_([a-z0-9]+)_(?:apply|c([1-9][0-9]*))")


@dataclass(frozen=True, slots=True)
class SlotName:
    """The parts of a slot's name. `attempt` is the copy attempt for which the slot was created; None for the apply
    stream's."""

    pipeline: str
    instance: str
    attempt: int | None = None

    def __str__(self) -> str:
        use = "apply" if self.attempt is None else f"c{self.attempt}"
        return f"pgetl_{self.pipeline}_{self.instance}_{use}"

    @classmethod
    def parse(cls, text: str) -> SlotName | None:
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        pipeline, instance, attempt = found.groups()
        return cls(pipeline, instance, None if attempt is None else int(attempt))


def apply_slot(pipeline: str, instance: str) -> str:
    """The name of the slot of the apply stream."""
    return _validated(SlotName(pipeline, instance))


def copy_slot(pipeline: str, instance: str, attempt: int) -> str:
    """The name of the slot that this copy attempt creates for its sync group."""
    if attempt < 1:
        raise ValueError(f"copy attempts count from 1, not {attempt}")
    return _validated(SlotName(pipeline, instance, attempt))


def temporary_slot(pipeline: str, instance: str) -> str:
    """The name of a slot that exists as long as its session. It does not parse as one of the names above, so that no
    pipeline finds the slot or drops it."""
    name = f"pgetl_{pipeline}_{instance}_t{secrets.token_hex(4)}"
    return name if len(name) <= MAX_BYTES else f"pgetl_t{secrets.token_hex(8)}"


def _validated(slot: SlotName) -> str:
    if not _PIPELINE.fullmatch(slot.pipeline) or not _INSTANCE.fullmatch(slot.instance):
        problem = f"The pipeline's id {slot.pipeline!r} cannot be part of a slot's name."
        remedy = "Use lower-case letters, digits and underscores."
        raise PgetlError(ErrorKind.CONFIG, problem, remedy=remedy)
    name = str(slot)
    if len(name) > MAX_BYTES:
        problem = f"The slot name {name} is longer than {MAX_BYTES} bytes."
        raise PgetlError(ErrorKind.CONFIG, problem, remedy="Give the pipeline a shorter id.")
    return name


# -- Slots. ------------------------------------------------------------------------------------------------------------

FAILOVER_SINCE = 170000
_CONFLICTING_SINCE = 160000
_ROUND_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot as the server shows it. `lost` is the server's reason why it cannot be used any more; None if it can."""

    name: str
    confirmed: Boundary | None
    restart: Boundary | None
    active_pid: int | None
    wal_status: str | None
    lost: str | None
    failover: bool

    def retained(self, wal_end: Boundary) -> int | None:
        """The bytes of WAL that the server keeps for the slot. None if the slot is lost: the server then keeps no WAL
        for it."""
        return None if self.restart is None else max(0, wal_end.lsn - self.restart.lsn)


def slot_status(name: SlotName, slot: Slot, wal_end: Boundary) -> SlotStatus:
    return SlotStatus(
        slot.name,
        "apply" if name.attempt is None else f"c{name.attempt}",
        slot.active_pid is not None,
        slot.confirmed,
        slot.retained(wal_end),
        slot.wal_status,
        slot.lost,
    )


def find_slot(connection: Connection, name: str) -> Slot | None:
    """The slot of this name, if this database has it."""
    return next((slot for slot in _read_slots(connection) if slot.name == name), None)


def list_slots(connection: Connection, pipeline: str, instance: str) -> Mapping[SlotName, Slot]:
    """The slots in this database that belong to this pipeline of this state store, and no other's."""
    named = ((SlotName.parse(slot.name), slot) for slot in _read_slots(connection))
    return {
        name: slot
        for name, slot in named
        if name is not None and (name.pipeline, name.instance) == (pipeline, instance)
    }


def list_namesakes(connection: Connection, pipeline: str) -> Mapping[SlotName, Slot]:
    """The slots in this database that belong to a pipeline of this id, of any state store."""
    named = ((SlotName.parse(slot.name), slot) for slot in _read_slots(connection))
    return {name: slot for name, slot in named if name is not None and name.pipeline == pipeline}


def list_unused(connection: Connection) -> Mapping[SlotName, Slot]:
    """The slots in this database that are named like pgetl's, of any pipeline, and that no session uses now.

    Slots that a standby has from its primary are left out: only the primary can tell whether they are used.
    """
    with server_errors("Replication slots could not be read"):
        (standby,) = connection.execute("SELECT pg_is_in_recovery()").fetchall()[0]
    idle = [slot for slot in _read_slots(connection) if slot.active_pid is None and not (standby and slot.failover)]
    named = ((SlotName.parse(slot.name), slot) for slot in idle)
    return {name: slot for name, slot in named if name is not None}


def drop_slot(connection: Connection, name: str, *, terminate: bool = False, patience: float = 10.0) -> bool:
    """Drops the slot; returns False if there was none.

    Waits up to `patience` seconds for a slot that is in use; with `terminate`, the session that uses it is ended first.
    """
    deadline = time.monotonic() + patience
    while (slot := find_slot(connection, name)) is not None:
        if slot.active_pid is None and _dropped(connection, name):
            return True
        if terminate:
            _terminate(connection, name)
        _wait_a_round(connection, name, deadline)
    return False


@contextmanager
def deciding(connection: Connection, name: str, *, patience: float = 30.0) -> Iterator[None]:
    """Lets one session at a time decide whether the slot is created or dropped: no other session creates it between the
    check and the drop."""
    deadline = time.monotonic() + patience
    while not _asked(connection, "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", name):
        if time.monotonic() > deadline:
            raise PgetlError(ErrorKind.SLOT_IN_USE, f"Another process has been making the slot {name} for a while.")
        time.sleep(_ROUND_SECONDS)
    try:
        yield
    finally:
        if not connection.broken:
            _asked(connection, "SELECT pg_advisory_unlock(hashtextextended(%s, 0))", name)


def _asked(connection: Connection, question: LiteralString, name: str) -> bool:
    with server_errors(f"The slot {name} could not be decided upon"):
        row = connection.execute(question, [name]).fetchone()
    return row is not None and bool(row[0])


def release_slot(connection: Connection, name: str, *, patience: float = 10.0) -> None:
    """Ends the session that streams from the slot, if there is one, and waits until the slot is free."""
    deadline = time.monotonic() + patience
    while (slot := find_slot(connection, name)) is not None and slot.active_pid is not None:
        _terminate(connection, name)
        _wait_a_round(connection, name, deadline)


def _dropped(connection: Connection, name: str) -> bool:
    with server_errors(f"The slot {name} could not be dropped"):
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
        except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
            return False
    return True


def _terminate(connection: Connection, name: str) -> None:
    with server_errors(f"The session that uses the slot {name} could not be ended"):
        connection.execute(_TERMINATE, [name])


def _wait_a_round(connection: Connection, name: str, deadline: float) -> None:
    if time.monotonic() < deadline:
        time.sleep(_ROUND_SECONDS)
        return
    slot = find_slot(connection, name)
    who = f"process {slot.active_pid}" if slot and slot.active_pid else "another session"
    raise PgetlError(ErrorKind.SLOT_IN_USE, f"The slot {name} is in use by {who}.")


def _read_slots(connection: Connection) -> list[Slot]:
    with server_errors("Replication slots could not be read"):
        rows = connection.execute(_query(connection.info.server_version)).fetchall()
    return [Slot(name, _boundary(confirmed), _boundary(restart), *rest) for name, confirmed, restart, *rest in rows]


def _boundary(text: str | None) -> Boundary | None:
    return None if text is None else Boundary.parse(text)


def _query(version: int) -> str:
    reason = "null::text"
    if version >= _CONFLICTING_SINCE:
        reason = "case when conflicting then 'conflict with recovery' end"
    if version >= FAILOVER_SINCE:
        reason = "invalidation_reason"
    return f"""
        select slot_name::text, confirmed_flush_lsn::text, restart_lsn::text, active_pid, wal_status,
               coalesce({reason}, case when wal_status = 'lost' then 'wal_removed' end),
               {"failover" if version >= FAILOVER_SINCE else "false"}
        from pg_replication_slots
        where slot_type = 'logical' and database = current_database()
        order by slot_name
    """


_TERMINATE = """
select pg_terminate_backend(active_pid) from pg_replication_slots
where slot_name = %s and database = current_database() and active_pid is not null
"""


# -- The slots of sync groups, as distinct from the apply stream's. ----------------------------------------------------


def group_slots(slots: Mapping[SlotName, Slot]) -> dict[int, Slot]:
    """The slots of sync groups, by the copy attempt that created them."""
    return {name.attempt: slot for name, slot in slots.items() if name.attempt is not None}
