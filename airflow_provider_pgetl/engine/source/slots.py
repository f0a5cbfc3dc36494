"""Replication slots: looked at, set free, dropped. They are made in `slot_creation`.

A slot pins WAL, so that one without use harms the source: whoever makes one has to drop it. Nothing here decides
which slots are of use. All functions name the slot they mean in full; `list_slots` finds those of one pipeline and
instance by taking names apart, never by a prefix.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import LiteralString

import psycopg

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.source.slot_names import SlotName

FAILOVER_SINCE = 170000
_CONFLICTING_SINCE = 160000
_ROUND_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot as the server shows it. `lost` says, in the server's words, why it can serve nobody any more."""

    name: str
    confirmed: Boundary | None
    restart: Boundary | None
    active_pid: int | None
    wal_status: str | None
    lost: str | None
    failover: bool

    def retained(self, wal_end: Boundary) -> int | None:
        """How many bytes of WAL the server keeps for it. None: no more than it would without, as the slot is lost."""
        return None if self.restart is None else max(0, wal_end.lsn - self.restart.lsn)


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
    """The slots in this database that belong to a pipeline of this id, of whichever state store."""
    named = ((SlotName.parse(slot.name), slot) for slot in _read_slots(connection))
    return {name: slot for name, slot in named if name is not None and name.pipeline == pipeline}


def list_unused(connection: Connection) -> Mapping[SlotName, Slot]:
    """The slots in this database that are named like ours, whosever they are, and that no session uses now.

    Without those that a standby has from its primary: whether these are of use is for the primary to say.
    """
    with server_errors("Replication slots could not be read"):
        (standby,) = connection.execute("SELECT pg_is_in_recovery()").fetchall()[0]
    idle = [slot for slot in _read_slots(connection) if slot.active_pid is None and not (standby and slot.failover)]
    named = ((SlotName.parse(slot.name), slot) for slot in idle)
    return {name: slot for name, slot in named if name is not None}


def drop_slot(connection: Connection, name: str, *, terminate: bool = False, patience: float = 10.0) -> bool:
    """Drop the slot; False if there was none.

    One in use is waited for until `patience` seconds are over, with `terminate` after ending the session that uses it.
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
    """One session at a time decides what becomes of the slot: nobody makes another between its looking and dropping."""
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
    """End the session that streams from the slot, if there is one, and wait until the slot is free."""
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
