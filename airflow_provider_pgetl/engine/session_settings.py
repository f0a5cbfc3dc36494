"""What every session of ours is pinned to before its first use, at the source, at the destination and at the state
database alike: whatever server, database and role have set for others.

* The text of a value is the same whoever reads it, and is what the driver can read. A text is read as it was written:
  `array_nulls` would make the word of a null, `quote_all_identifiers` another name of each type.
* A query finds every row: `gin_fuzzy_search_limit` would have it find some.
* No limit that was set for applications ends a session of ours, or keeps it from writing: the exporter of a snapshot is
  idle in its transaction for as long as a copy lasts. An error ends a statement, not the session (`exit_on_error`). A
  standby stays what it is.
* Names resolve in pg_catalog alone, so that names of everything else come out qualified.
* What was committed is there after a crash: never asynchronous commit. The stricter forms of it stay.
"""

from __future__ import annotations

from collections.abc import Mapping

SETTINGS: Mapping[str, str] = {
    "array_nulls": "on",
    "backslash_quote": "safe_encoding",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "datestyle": "ISO, MDY",
    "default_transaction_deferrable": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "exit_on_error": "off",
    "extra_float_digits": "3",
    "gin_fuzzy_search_limit": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "intervalstyle": "postgres",
    "lc_monetary": "C",
    "lock_timeout": "0",
    "quote_all_identifiers": "off",
    "restrict_nonsystem_relation_kind": "",
    "row_security": "off",
    "search_path": "pg_catalog",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "timezone": "UTC",
    "timezone_abbreviations": "Default",
    "transaction_timeout": "0",
    "transform_null_equals": "off",
    "xmlbinary": "base64",
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
