"""What a failed attempt to connect means.

libpq keeps the SQLSTATE of a server that turns a connection away to itself; only the sentence comes out. So this is
the one place that looks at words. They are the server's English ones; a server that speaks another language is taken
for unreachable, which is the safe mistake: it is tried again and nothing changes.
"""

from __future__ import annotations

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError

_BY_WORDS: tuple[tuple[str, ErrorKind, str | None], ...] = (
    ("authentication failed", ErrorKind.AUTHENTICATION, None),
    ("no password supplied", ErrorKind.AUTHENTICATION, None),
    ("no pg_hba.conf entry", ErrorKind.AUTHENTICATION, None),
    ("is not permitted to log in", ErrorKind.AUTHENTICATION, "Give the role the LOGIN attribute."),
    ("start WAL sender", ErrorKind.PRIVILEGE, "Give the role the REPLICATION attribute."),
    ("start walsender", ErrorKind.PRIVILEGE, "Give the role the REPLICATION attribute."),
    ("permission denied for database", ErrorKind.PRIVILEGE, "Grant CONNECT on the database to the role."),
    ("max_wal_senders", ErrorKind.RESOURCES, "Raise max_wal_senders on that server (needs a restart)."),
    ("too many connections", ErrorKind.RESOURCES, None),
    ("too many clients", ErrorKind.RESOURCES, None),
    ("connection slots are reserved", ErrorKind.RESOURCES, None),
    ("certificate", ErrorKind.AUTHENTICATION, "Check sslmode, sslrootcert, sslcert and sslkey of the URI."),
    ("does not support SSL", ErrorKind.CONFIG, "Turn on TLS on that server, or choose another sslmode in the URI."),
)


def connection_failure(server: str, words: str) -> PgetlError:
    """The error for a connection to `server`, its part and its address, that came to nothing."""
    sentence = _essence(words)
    kind, remedy = _judge(words)
    return PgetlError(kind, f"No connection to {server}: {sentence}.", remedy=remedy)


def _judge(words: str) -> tuple[ErrorKind, str | None]:
    for part, kind, remedy in _BY_WORDS:
        if part in words:
            return kind, remedy
    if "does not exist" in words:
        if 'role "' in words:
            return ErrorKind.AUTHENTICATION, None
        if 'database "' in words:
            return ErrorKind.CONFIG, "Name a database that exists in the URI."
    return ErrorKind.CONNECTION, None


def _essence(words: str) -> str:
    """The answer alone, without the preamble that repeats the address."""
    line = (words.strip().splitlines() or [""])[0]
    return line.rpartition("FATAL:")[2].rpartition(" failed: ")[2].strip().rstrip(".") or "no reason was given"
