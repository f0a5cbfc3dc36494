"""The settings that every pgetl session is pinned to before its first use, at the source, at the destination and at the
state database alike, whatever server, database and role have configured; poolers, failed connections, and the
same-database check.

* The text of a value is the same for every reader, and is what the driver can read. A text is read as it was written:
  `array_nulls = off` would turn a null into a word, `quote_all_identifiers` would change the name of each type.
* A query returns every row: with `gin_fuzzy_search_limit` it would return some.
* No limit that was set for applications ends a pgetl session, or keeps it from writing: the exporter of a snapshot is
  idle in its transaction for as long as a copy lasts. An error ends a statement, not the session (`exit_on_error`). A
  standby stays read-only.
* Names are resolved in pg_catalog alone, so that all other names are printed with their schema.
* A committed transaction survives a crash: commits are never asynchronous. Stricter values of `synchronous_commit` are
  kept.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from airflow_provider_pgetl.engine.config.secrets import READABLE
from airflow_provider_pgetl.engine.config.tokens import Address
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError

R = TypeVar("R")

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

_ENCODING = {"client_encoding": "UTF8"}
_FIRST = "SET statement_timeout = 0; SET search_path = pg_catalog; "
_COMMIT = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'; "


def pinning(more: Mapping[str, str] | None = None) -> bytes:
    """The statements that pin the settings, in one text for every version: a setting that a server does not have is
    skipped. Names and values are pgetl's own, never a user's."""
    values = ", ".join(f"('{name}', '{value}')" for name, value in {**SETTINGS, **(more or {})}.items())
    return (
        f"{_FIRST}{_COMMIT}SELECT set_config(name, value, false) FROM (VALUES {values}) AS pinned(name, value) "
        "WHERE current_setting(name, true) IS NOT NULL"
    ).encode()


# -- Opening a session. -----------------------------------------------------------------------------------------------
#
# All other parameters of a connection, TLS among them, are those of the URI; a token (`config.tokens`) is created anew
# for each session.

# A dead connection is detected within a minute, even if nothing is sent: an idle stream and the exporter of a snapshot
# both only wait.
_DEFAULTS: Mapping[str, str] = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "4",
}


def connection_string(uri: str, role: str, application_name: str, **extra: str) -> str:
    """Returns the URI's parameters, which override pgetl's defaults and are overridden by the names that pgetl sets and
    by `extra`. `role`: what the server is called in errors, for example "the source"."""
    try:
        given = of_the_primary(Address.read(uri).parameters())
    except psycopg.Error:
        # The cause is suppressed: libpq's message quotes what it could not parse, which may be a password.
        message = f"{role[0].upper()}{role[1:]}'s URI cannot be read."
        raise PgetlError(ErrorKind.CONFIG, message, remedy=READABLE) from None
    defaults = dict(_DEFAULTS)
    if "PGCONNECT_TIMEOUT" in os.environ:
        del defaults["connect_timeout"]
    return make_conninfo("", **{**defaults, **given, "application_name": application_name, **_ENCODING, **extra})


def opened_session(
    connect: Callable[[], psycopg.Connection[R]], place: str, pin: Callable[[psycopg.Connection[R]], object]
) -> psycopg.Connection[R]:
    """Returns a new session in autocommit, which was checked to be the server's own and is pinned by `pin`. `connect`
    opens one; it is called again if the check needs further sessions."""
    connection = connect()
    try:
        expect_own_session(connection, connect, place)
        pin(connection)
    except BaseException:
        connection.close()
        raise
    return connection


# -- Whether a session is the server's own, or a connection pooler assigns one to each transaction. --------------------
#
# The state of a session (settings, temporary tables, prepared statements, advisory locks, LISTEN) is lost under
# transaction pooling, and visible to the pooler's other clients, without an error. So this is checked before a session
# is pinned, and such an address is refused. A pooler that keeps sessions is as good as the server itself.
#
# A server reports its process id with the connection; a pooler makes one up. Only if that differs from
# pg_backend_pid(), two more sessions decide: what one of them sets must not be visible to the other, and must not be
# lost. The setting has a name of pgetl's own, so that nothing is changed for others. The result is valid for some
# minutes.

Open = Callable[[], psycopg.Connection[Any]]

BACKEND = "select pg_catalog.pg_backend_pid()"
_SETTING = "pgetl.own_session"
_SET = f"select pg_catalog.set_config('{_SETTING}', '{{}}', false)"
_GET = f"select pg_catalog.current_setting('{_SETTING}', true)"
_ROUNDS = 3
_VALID_SECONDS = 300.0

_kept: dict[str, float] = {}


def expect_own_session(connection: psycopg.Connection[Any], open_another: Open, place: str) -> None:
    """Raises if the transactions of this connection, in autocommit, do not all run in one session."""
    if int(_ask(connection, BACKEND)) != connection.info.backend_pid:
        expect_kept_sessions(open_another, place)


def expect_kept_sessions(open_another: Open, place: str) -> None:
    """Raises if the pooler at this place does not keep sessions."""
    now = time.monotonic()
    if now - _kept.get(place, -_VALID_SECONDS) < _VALID_SECONDS:
        return
    with open_another() as one, open_another() as other:
        if any(_is_shared(one, other) for _ in range(_ROUNDS)):
            raise _transaction_pooling(place)
    _kept[place] = now


def _is_shared(one: psycopg.Connection[Any], other: psycopg.Connection[Any]) -> bool:
    """Whether a session is shared or lost between transactions. The transaction of `other` is open meanwhile, so that
    no other client uses its session. A pooler that assigns sessions to single statements refuses to open one."""
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


# -- A URI with several hosts, of which one is the primary. ------------------------------------------------------------
#
# libpq connects to the first host that answers, unless `target_session_attrs` selects one. A standby cannot be written
# to, and does not have the primary's slots: a session on the wrong host would look like a lost slot. So the primary is
# the default; and after a failover the next session is on the host that is the primary then.


def of_the_primary(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a connection, with the primary as the default for several hosts. The parameters may come from
    libpq's environment, too."""
    hosts = str(given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST", ""))
    is_said = "target_session_attrs" in given or "PGTARGETSESSIONATTRS" in os.environ
    return {**given} if is_said or "," not in hosts else {**given, "target_session_attrs": "primary"}


# -- What a failed attempt to connect means. ---------------------------------------------------------------------------
#
# If a server refuses a connection, libpq does not report the SQLSTATE, but only the message, in the server's language,
# and whether a password was requested. So this is the one place that matches messages. If a message is not one of the
# English ones, a server that refuses after it was given a password is assumed to refuse for good: the error then names
# user and server, and the remedy lists all possible causes. Any other server is assumed to be unreachable, which is the
# safe mistake: the attempt is repeated and nothing changes.

_POOLER = (
    "That is a connection pooler, which passes no replication on. Name the server's own address in the source's URI."
)
_PARAMETER = "That is a connection pooler: leave the parameter out of the URI, or name the server's own address."
_ROLE = "A host is passed over that has not the role which target_session_attrs asks for: by default, the primary's."
_TLS = "Check sslmode, sslrootcert, sslcert and sslkey of the URI."
_RDS = (
    "On RDS and Aurora: GRANT rds_iam TO the role; who signs must have rds-db:connect on it; for replication sessions "
    "set rds.iam_auth_for_replication = 1, too. The host must be the instance's own endpoint, and the clock right."
)
_CLOUD_SQL = "The role is a service account's e-mail without .gserviceaccount.com, with roles/cloudsql.instanceUser."
_BY_WORDS: tuple[tuple[str, ErrorKind, str | None], ...] = (
    (r"PAM authentication failed", ErrorKind.AUTHENTICATION, _RDS),
    (r"Cloud SQL IAM .*authentication failed", ErrorKind.AUTHENTICATION, _CLOUD_SQL),
    (r"authentication failed", ErrorKind.AUTHENTICATION, None),
    (r"no password supplied", ErrorKind.AUTHENTICATION, None),
    (r"no pg_hba\.conf entry", ErrorKind.AUTHENTICATION, None),
    (r"is not permitted to log in", ErrorKind.AUTHENTICATION, "Give the role the LOGIN attribute."),
    (r'role ".*" does not exist', ErrorKind.AUTHENTICATION, None),
    (r'database ".*" does not exist', ErrorKind.NO_DATABASE, None),
    (r"start (WAL sender|walsender)", ErrorKind.PRIVILEGE, "Give the role the REPLICATION attribute."),
    (r"unsupported startup parameter: replication", ErrorKind.PREFLIGHT, _POOLER),
    (r"unsupported startup parameter", ErrorKind.PREFLIGHT, _PARAMETER),
    (r"no such database", ErrorKind.NO_DATABASE, None),
    (r"permission denied for database", ErrorKind.PRIVILEGE, "Grant CONNECT on the database to the role."),
    (r"max_wal_senders", ErrorKind.RESOURCES, "Raise max_wal_senders on that server (needs a restart)."),
    (r"too many (connections|clients)|connection slots are reserved", ErrorKind.RESOURCES, None),
    (r"terminating connection|authentication due to timeout", ErrorKind.CONNECTION, None),
    (r"starting up|shutting down|in recovery mode", ErrorKind.CONNECTION, None),
    (r"cannot connect to server|server login|server conn|query_wait_timeout", ErrorKind.CONNECTION, None),
    (r"in hot standby mode|session is (not )?read-only", ErrorKind.CONNECTION, _ROLE),
    (r"certificate", ErrorKind.AUTHENTICATION, _TLS),
    (
        r"does not support SSL",
        ErrorKind.AUTHENTICATION,
        "Turn on TLS on that server, or choose another sslmode in the URI.",
    ),
)
# Only a report of the server has two blanks after the severity, which is in the server's language, too.
_REPORT = re.compile(r"(?:^|failed: )(?P<severity>[^\s:]{1,30}):  (?P<words>.*)")
_PREAMBLE = re.compile(r"^(connection (?:failed|is bad): )?(connection to server .*? failed: )?")
_OF_ONE_HOST = re.compile(r"^- host: (?P<host>.*?), port: (?P<port>.*?), hostaddr: .*?: (?P<words>.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A failed attempt to connect. `reported`: the server answered, and `words` is its message."""

    words: str
    reported: bool
    asked_for_password: bool
    user: str


def connection_failure(server: str, error: psycopg.Error) -> PgetlError:
    """The error for a failed connection to `server`, which is its role and its address."""
    answers = _of_each_host(str(error))
    refusals = {host: _read(words, error) for host, words in answers.items()}
    kind, remedy = _judge_all([_judge(refusal) for refusal in refusals.values()])
    words = [f"{host}{': ' if len(refusals) > 1 else ''}{one.words}" for host, one in refusals.items()]
    return PgetlError(kind, f"No connection to {server}: {'; '.join(words)}.", remedy=remedy)


def _of_each_host(words: str) -> dict[str, str]:
    """psycopg's message for each host that was tried; for several addresses of one host, that for the last."""
    tried = {f"{one['host']}:{one['port']}".replace("'", ""): one["words"] for one in _OF_ONE_HOST.finditer(words)}
    return tried if len(tried) > 1 else {"": words}


def _judge_all(found: list[tuple[ErrorKind, str | None]]) -> tuple[ErrorKind, str | None]:
    """The verdict on all hosts: a transient one, if there is any. If one host refuses for good and another is only
    unreachable, the other may come back."""
    passing = [one for one in found if one[0].transient]
    return next((one for one in passing if one[1]), passing[0]) if passing else found[-1]


def _read(words: str, error: psycopg.Error) -> _Refusal:
    """The message alone, without the preamble that repeats the address."""
    line = (words.strip().splitlines() or [""])[0]
    report = _REPORT.search(line)
    said = (report["words"] if report else _PREAMBLE.sub("", line)).strip().rstrip(".")
    session = error.pgconn
    asked = session is not None and bool(session.used_password or session.needs_password)
    user = session.user.decode(errors="replace") if session is not None else ""
    return _Refusal(said or "no reason was given", report is not None, asked, user)


def _judge(refusal: _Refusal) -> tuple[ErrorKind, str | None]:
    for pattern, kind, remedy in _BY_WORDS:
        if re.search(pattern, refusal.words):
            return kind, remedy
    if not refusal.reported:
        return ErrorKind.CONNECTION, None
    who = f"the role {refusal.user}" if refusal.user else "the role"
    remedy = f"The server answers, and turns {who} away: check user, password, database and its pg_hba.conf."
    return ErrorKind.AUTHENTICATION if refusal.asked_for_password else ErrorKind.CONNECTION, remedy


# -- The locale by which a database compares and folds texts: one query, for source and destination alike. -------------

LOCALE = """
    select concat_ws(' ', coalesce(to_jsonb(b) ->> 'datlocprovider', 'c'), b.datcollate, b.datctype,
                     coalesce(to_jsonb(b) ->> 'datlocale', to_jsonb(b) ->> 'daticulocale'))
    from pg_database b where b.datname = current_database()
"""


# -- Servers whose commits wait for a synchronous standby. -------------------------------------------------------------
#
# If fewer standbys are connected than a commit waits for, every write hangs until one connects, and no timeout ends it:
# PostgreSQL only lets the wait be cancelled, after which a commit counts as replicated that is not. So this is checked
# before anything is written. Only a role that may read all statistics sees which standbys are connected.

STANDBYS_MISSING = """
select greatest(0, needed - (select count(*) from pg_stat_replication where sync_state in ('sync', 'quorum')))::int
from (select coalesce(substring(names from '^\\s*(?:FIRST\\s+|ANY\\s+)?(\\d+)\\s*\\(')::int, 1) as needed
      from (select current_setting('synchronous_standby_names') as names) as said
      where names <> '' and not pg_is_in_recovery()
        and current_setting('synchronous_commit') not in ('off', 'local')
        and pg_has_role('pg_read_all_stats', 'USAGE')) as waited_for
"""

REMEDY = "Bring the standby back, or take it out of synchronous_standby_names."


def commits_wait(place: str, missing: int) -> str:
    """The problem, as a sentence about the server at `place`."""
    return (
        f"Commits in {place} wait for a synchronous standby: synchronous_standby_names asks for {missing} more than "
        "are connected."
    )


# -- The same-database check: whether source and destination are one database, whatever their URIs look like. ----------
#
# The source's session holds an advisory lock with a random number; another session sees it in the same database, and
# nowhere else. A standby's locks are not visible at its primary, so a standby is identified by what it has in common
# with the primary: system identifier, timeline and the database's OID.


@dataclass(frozen=True, slots=True)
class Primary:
    """The database that a standby replicates, as the standby reports it."""

    system: str
    timeline: int
    database: int


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of the source's database. `key` is the number of the advisory lock. `primary` is set if the source is a
    standby."""

    key: int
    primary: Primary | None = None
