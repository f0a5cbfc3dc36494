"""Advisory locks, which queue fairly, and what becomes of a holder that does not let go.

Every batch holds its pipeline's lock, shared, while it writes; a take-over needs it alone. Every range of a copy holds
its table's lock, shared; beginning, publishing and aborting a copy need it alone. A holder may be a worker whose
machine is gone while its connection still stands: after `PATIENCE` seconds the sessions of ours that hold the lock are
ended.

All locks are of the transaction: no pool, crash or forgotten release can leave one behind.
"""

from __future__ import annotations

import hashlib

from airflow_provider_pgetl.engine.destinations.postgres.session import ServerError, Session, Statement
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.tables import TableName

PATIENCE = 5.0
_TIMED_OUT = "55P03"


def key(*words: str) -> int:
    """The number by which Postgres knows a lock of this name."""
    digest = hashlib.blake2b("\0".join(("pgetl", *words)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


DDL = key("ddl")


def of_pipeline(pipeline: str) -> int:
    return key("pipeline", pipeline)


def of_table(pipeline: str, table: TableName) -> int:
    return key("table", pipeline, table.schema, table.name)


def take(session: Session, lock: int) -> None:
    """Hold the lock alone, however long it takes to get it."""
    session.execute("select pg_advisory_xact_lock($1)", (lock,))


def take_shared(session: Session, lock: int) -> None:
    session.execute("select pg_advisory_xact_lock_shared($1)", (lock,))


def ask_shared(lock: int) -> Statement:
    return Statement("select pg_advisory_xact_lock_shared($1)", (str(lock).encode(),))


def take_over(session: Session, lock: int) -> None:
    """Hold the lock alone; holders that keep it for longer than `PATIENCE` lose their sessions."""
    for _ in range(5):
        if _taken_within(session, lock, PATIENCE):
            return
        end_holders(session, lock)
    raise PgetlError(
        ErrorKind.CONNECTION,
        "Sessions of an earlier worker hold on to the destination, and cannot be ended.",
        remedy="Let the role end its own sessions (pg_signal_backend), or end those named `pgetl …` by hand.",
    )


def _taken_within(session: Session, lock: int, patience: float) -> bool:
    session.execute("savepoint waiting")
    session.execute(f"set local lock_timeout = {max(int(patience * 1000), 1)}")
    try:
        take(session, lock)
    except ServerError as error:
        if error.sqlstate != _TIMED_OUT:
            raise
        session.execute("rollback to savepoint waiting")
        return False
    session.execute("set local lock_timeout = 0")
    session.execute("release savepoint waiting")
    return True


def end_holders(session: Session, lock: int) -> None:
    """End the sessions of ours that hold the lock; a role that may not is told by the next attempt to take it."""
    statement = """select pg_terminate_backend(l.pid) from pg_locks l join pg_stat_activity a on a.pid = l.pid
        where l.locktype = 'advisory' and l.granted and l.pid <> pg_backend_pid() and l.objsubid = 1
          and l.database = (select oid from pg_database where datname = current_database())
          and (l.classid::bigint << 32 | l.objid::bigint) = $1 and a.application_name like 'pgetl %'"""
    session.execute("savepoint ending")
    try:
        session.execute(statement, (lock,))
    except ServerError as error:
        if error.kind is not ErrorKind.PRIVILEGE:
            raise
        session.execute("rollback to savepoint ending")
