"""What a failed attempt to connect means.

libpq keeps the SQLSTATE of a server that turns a connection away to itself; only the sentence comes out, in the
server's own language, and whether a password was asked for. So this is the one place that looks at words. Where they
are not the English ones, a server that refuses after it was given a password is taken to refuse for good: the message
then names user and server, and the remedy all that it may be. Any other is taken for unreachable, which is the safe
mistake: it is tried again and nothing changes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgetl.engine.errors import DIRECTIVES, ErrorKind, PgetlError

if TYPE_CHECKING:
    import psycopg

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
# What a server says, and nothing else, has two blanks behind the severity, which comes in its language too.
_REPORT = re.compile(r"(?:^|failed: )(?P<severity>[^\s:]{1,30}):  (?P<words>.*)")
_PREAMBLE = re.compile(r"^(connection (?:failed|is bad): )?(connection to server .*? failed: )?")
_OF_ONE_HOST = re.compile(r"^- host: (?P<host>.*?), port: (?P<port>.*?), hostaddr: .*?: (?P<words>.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What is known of an attempt. `reported`: the server answered, and the words are its own."""

    words: str
    reported: bool
    asked_for_password: bool
    user: str


def connection_failure(server: str, error: psycopg.Error) -> PgetlError:
    """The error for a connection to `server`, its part and its address, that came to nothing."""
    answers = _of_each_host(str(error))
    refusals = {host: _read(words, error) for host, words in answers.items()}
    kind, remedy = _judge_all([_judge(refusal) for refusal in refusals.values()])
    words = [f"{host}{': ' if len(refusals) > 1 else ''}{one.words}" for host, one in refusals.items()]
    return PgetlError(kind, f"No connection to {server}: {'; '.join(words)}.", remedy=remedy)


def _of_each_host(words: str) -> dict[str, str]:
    """What psycopg says of each that was tried; of several addresses of one host, of the last."""
    tried = {f"{one['host']}:{one['port']}".replace("'", ""): one["words"] for one in _OF_ONE_HOST.finditer(words)}
    return tried if len(tried) > 1 else {"": words}


def _judge_all(found: list[tuple[ErrorKind, str | None]]) -> tuple[ErrorKind, str | None]:
    """Where one host refuses for good, and another is only away, the other may come back."""
    passing = [one for one in found if DIRECTIVES[one[0]].retry == "in_place"]
    return next((one for one in passing if one[1]), passing[0]) if passing else found[-1]


def _read(words: str, error: psycopg.Error) -> _Refusal:
    """The answer alone, without the preamble that repeats the address."""
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
