"""Whether a session is the server's own, or a connection pooler lends one out for each transaction.

Everything that a session holds (settings, temporary tables, prepared statements, advisory locks, LISTEN) is lost under
transaction pooling, and met by the pooler's other clients, without an error. So this is asked before a session is
pinned, and such an address is refused. A pooler that keeps sessions is as good as the server itself.

A server tells its process id with the connection; a pooler makes one up. Only where the two differ, two more sessions
find out: what one of them sets may not be seen by the other, and may not be forgotten. The setting is of our own name,
so that nothing is changed for others. The answer holds for some minutes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

import psycopg

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError

Open = Callable[[], psycopg.Connection[Any]]

BACKEND = "select pg_catalog.pg_backend_pid()"
_SETTING = "pgetl.own_session"
_SET = f"select pg_catalog.set_config('{_SETTING}', '{{}}', false)"
_GET = f"select pg_catalog.current_setting('{_SETTING}', true)"
_ROUNDS = 3
_VALID_SECONDS = 300.0

_kept: dict[str, float] = {}


def expect_own_session(connection: psycopg.Connection[Any], open_another: Open, place: str) -> None:
    """Raise where transactions of this connection, in autocommit, are not all of one session."""
    if int(_ask(connection, BACKEND)) != connection.info.backend_pid:
        expect_kept_sessions(open_another, place)


def expect_kept_sessions(open_another: Open, place: str) -> None:
    """Raise if the pooler at this place does not keep sessions."""
    now = time.monotonic()
    if now - _kept.get(place, -_VALID_SECONDS) < _VALID_SECONDS:
        return
    with open_another() as one, open_another() as other:
        if any(_is_shared(one, other) for _ in range(_ROUNDS)):
            raise _transaction_pooling(place)
    _kept[place] = now


def _is_shared(one: psycopg.Connection[Any], other: psycopg.Connection[Any]) -> bool:
    """The other's transaction is open meanwhile, so that its session is nobody else's. A pooler that lends sessions out
    for single statements opens none."""
    token = secrets.token_hex(8)
    _ask(one, _SET.format(token))
    try:
        other.execute(b"begin")
    except psycopg.errors.ProtocolViolation:
        return True
    try:
        return bool(_ask(other, _GET) == token or _ask(one, _GET) != token)
    finally:
        other.execute(b"rollback")


def _ask(connection: psycopg.Connection[Any], question: str) -> Any:
    row = connection.execute(question.encode()).fetchone()
    return None if row is None else row[0]


def _transaction_pooling(place: str) -> PgetlError:
    message = (
        f"{place[0].upper()}{place[1:]} is a connection pooler that gives every transaction another session: settings, "
        "locks and temporary tables would be lost in between, and met by others."
    )
    remedy = "Name the server's own address in the URI, or, but for the source, a pool with pool_mode = session."
    return PgetlError(ErrorKind.PREFLIGHT, message, remedy=remedy)
