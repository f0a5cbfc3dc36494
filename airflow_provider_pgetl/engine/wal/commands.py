"""What is said to a walsender, to the byte."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.tables import quote_identifier

# Version 1 is all that is needed as long as neither streamed nor two-phase transactions are asked for; every server
# from 14 on speaks it, with binary values.
_PROTOCOL_VERSION = 1
_STATUS = Struct("!cQQQqB")
_POSTGRES_EPOCH = 946_684_800


def quote_literal(text: str) -> str:
    """A string for a server with `standard_conforming_strings`, or for the replication grammar."""
    return "'" + text.replace("'", "''") + "'"


def start_replication(slot: str, publications: Sequence[str], start: Boundary, *, binary: bool) -> str:
    """The publications are one string, and in it a list of identifiers: their names may hold anything."""
    names = ",".join(quote_identifier(name) for name in publications)
    options = {
        "proto_version": str(_PROTOCOL_VERSION),
        "publication_names": names,
        "binary": "true" if binary else "false",
        "messages": "false",
    }
    listed = ", ".join(f"{name} {quote_literal(value)}" for name, value in options.items())
    return f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {start} ({listed})"


def standby_status(boundary: Boundary, *, reply_requested: bool, unix_time: float) -> bytes:
    """Written, flushed and applied are one and the same to us: durable in the destination."""
    clock = int((unix_time - _POSTGRES_EPOCH) * 1_000_000)
    return _STATUS.pack(b"r", boundary.lsn, boundary.lsn, boundary.lsn, clock, reply_requested)


def slot_query(slot: str) -> str:
    """Whether the slot is of this database, its plugin, and whether its WAL is still there."""
    return (
        "select database is not distinct from pg_catalog.current_database(), plugin, wal_status"
        f" from pg_catalog.pg_replication_slots where slot_name = {quote_literal(slot)}"
    )


SENDER_TIMEOUT = "select setting from pg_catalog.pg_settings where name = 'wal_sender_timeout'"
"""In milliseconds; 0 where it is switched off."""

HEAR_WARNINGS = "set client_min_messages = warning"
