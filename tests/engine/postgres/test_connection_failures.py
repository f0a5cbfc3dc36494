"""What libpq's sentences mean. That servers do say so is shown in source/test_connecting.py.

Servers that speak other languages are played here, by a few bytes on a socket: libpq hears the same of either.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.postgres.sessions import connection_failure

PREAMBLE = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '
PLACE = "the source ann@db:5432/shop"


def failure(words: str) -> PgetlError:
    return connection_failure(PLACE, psycopg.OperationalError(PREAMBLE + words))


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ('FATAL:  password authentication failed for user "ann"', ErrorKind.AUTHENTICATION),
        ("fe_sendauth: no password supplied", ErrorKind.AUTHENTICATION),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1"', ErrorKind.AUTHENTICATION),
        ('FATAL:  role "ann" does not exist', ErrorKind.AUTHENTICATION),
        ("server does not support SSL, but SSL was required", ErrorKind.AUTHENTICATION),
        ('FATAL:  database "shop" does not exist', ErrorKind.NO_DATABASE),
        ("FATAL:  sorry, too many clients already", ErrorKind.RESOURCES),
        ("FATAL:  permission denied to start WAL sender", ErrorKind.PRIVILEGE),
        ('FATAL:  permission denied for database "shop"', ErrorKind.PRIVILEGE),
        ("Connection refused\n\tIs the server running on that host?", ErrorKind.CONNECTION),
        ("", ErrorKind.CONNECTION),
    ],
)
def test_words_have_a_kind(words: str, kind: ErrorKind) -> None:
    assert failure(words).kind is kind


def test_the_sentence_names_the_server_and_the_reason_once() -> None:
    refused = failure("Connection refused\n\tIs the server running?")
    assert refused.message == f"No connection to {PLACE}: Connection refused."


REFUSALS = [
    ("FATAL", "Passwort-Authentifizierung für Benutzer »ann« fehlgeschlagen"),
    ("ВАЖНО", "пользователь «ann» не прошёл проверку подлинности (по паролю)"),
    ("致命错误", '用户 "ann" Password 认证失败'),
]


@pytest.mark.parametrize(
    "words",
    ["terminating connection due to unexpected postmaster exit", "the database system is shutting down"],
)
def test_a_server_that_ends_while_it_is_asked_refuses_nobody(words: str) -> None:
    """Though it has been given a password by then."""
    with server_that_says("FATAL", words, asks_for_password=True) as port:
        assert turned_away(f"postgresql://ann:hunter2@127.0.0.1:{port}/shop").kind is ErrorKind.CONNECTION


@pytest.mark.parametrize(("severity", "words"), REFUSALS)
def test_a_refusal_in_another_language_after_the_password_is_one_for_good(severity: str, words: str) -> None:
    with server_that_says(severity, words, asks_for_password=True) as port:
        refused = turned_away(f"postgresql://ann:hunter2@127.0.0.1:{port}/shop")
    assert refused.kind is ErrorKind.AUTHENTICATION
    assert refused.message == f"No connection to {PLACE}: {words}."
    assert refused.remedy == (
        "The server answers, and turns the role ann away: check user, password, database and its pg_hba.conf."
    )


@pytest.mark.parametrize(("severity", "words"), [*REFUSALS, ("FATAL", "das Datenbanksystem startet")])
def test_one_before_any_password_may_pass_and_is_told_just_as_clearly(severity: str, words: str) -> None:
    """It may be a server that is only just starting."""
    with server_that_says(severity, words, asks_for_password=False) as port:
        refused = turned_away(f"postgresql://ann:hunter2@127.0.0.1:{port}/shop")
    assert refused.kind is ErrorKind.CONNECTION
    assert refused.message == f"No connection to {PLACE}: {words}."
    assert "turns the role ann away" in refused.remedy


def turned_away(uri: str) -> PgetlError:
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect(uri, sslmode="disable", gssencmode="disable")
    return connection_failure(PLACE, caught.value)


@contextmanager
def server_that_says(severity: str, words: str, *, asks_for_password: bool) -> Iterator[int]:
    """The port of one that takes a single session, and turns it away."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        answering = threading.Thread(target=_answer, args=(listening, severity, words, asks_for_password), daemon=True)
        answering.start()
        yield listening.getsockname()[1]
        answering.join(60)


def _answer(listening: socket.socket, severity: str, words: str, asks_for_password: bool) -> None:
    session, _ = listening.accept()
    with session:
        session.recv(4096)  # the startup packet
        if asks_for_password:
            session.sendall(b"R" + struct.pack("!ii", 8, 3))
            session.recv(4096)
        fields = {b"S": severity, b"V": "FATAL", b"C": "28P01", b"M": words}
        body = b"".join(code + text.encode() + b"\0" for code, text in fields.items()) + b"\0"
        session.sendall(b"E" + struct.pack("!i", len(body) + 4) + body)
