"""Marking the source's database, for the destination to say whether it is the very same."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_pgetl.engine.marks import Mark, Primary
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors

_KEY_BITS = 63


@contextmanager
def marked(connection: Connection) -> Iterator[Mark]:
    """The database bears the mark until the context is left, or the session ends."""
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
    """Nobody but a standby is asked for what not every role may see."""
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
