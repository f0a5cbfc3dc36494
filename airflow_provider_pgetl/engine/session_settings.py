"""What every session of ours is pinned to before its first use, at the source, at the destination and at the state
database alike: whatever server, database and role have set for others.

* The text of a value is the same whoever reads it, and is what the driver can read.
* No limit that was set for applications ends a session of ours, or keeps it from writing: the exporter of a snapshot is
  idle in its transaction for as long as a copy lasts. A standby stays what it is.
* Names resolve in pg_catalog alone, so that names of everything else come out qualified.
* What was committed is there after a crash: never asynchronous commit. The stricter forms of it stay.
"""

from __future__ import annotations

from collections.abc import Mapping

SETTINGS: Mapping[str, str] = {
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "datestyle": "ISO, MDY",
    "default_transaction_deferrable": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "extra_float_digits": "3",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "intervalstyle": "postgres",
    "lc_monetary": "C",
    "lock_timeout": "0",
    "row_security": "off",
    "search_path": "pg_catalog",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "timezone": "UTC",
    "transaction_timeout": "0",
    "xmloption": "content",
}

_FIRST = "SET statement_timeout = 0; SET search_path = pg_catalog; "
_COMMIT = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'; "


def pinning(more: Mapping[str, str] | None = None) -> bytes:
    """One text of statements for every version: a setting that a server does not have is passed over. Names and values
    are ours, never a user's."""
    values = ", ".join(f"('{name}', '{value}')" for name, value in {**SETTINGS, **(more or {})}.items())
    return (
        f"{_FIRST}{_COMMIT}SELECT set_config(name, value, false) FROM (VALUES {values}) AS pinned(name, value) "
        "WHERE current_setting(name, true) IS NOT NULL"
    ).encode()
