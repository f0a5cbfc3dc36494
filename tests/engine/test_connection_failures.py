"""What libpq's sentences mean. That servers do say so is shown in source/test_connecting.py."""

import pytest

from airflow_provider_pgetl.engine.connection_failures import connection_failure
from airflow_provider_pgetl.engine.errors import ErrorKind

PREAMBLE = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ('FATAL:  password authentication failed for user "ann"', ErrorKind.AUTHENTICATION),
        ("fe_sendauth: no password supplied", ErrorKind.AUTHENTICATION),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1"', ErrorKind.AUTHENTICATION),
        ('FATAL:  role "ann" does not exist', ErrorKind.AUTHENTICATION),
        ('FATAL:  database "shop" does not exist', ErrorKind.CONFIG),
        ("FATAL:  sorry, too many clients already", ErrorKind.RESOURCES),
        ("FATAL:  permission denied to start WAL sender", ErrorKind.PRIVILEGE),
        ("Connection refused\n\tIs the server running on that host?", ErrorKind.CONNECTION),
        ("FATAL:  Passwort-Authentifizierung für Benutzer »ann« fehlgeschlagen", ErrorKind.CONNECTION),
        ("", ErrorKind.CONNECTION),
    ],
)
def test_words_have_a_kind(words: str, kind: ErrorKind) -> None:
    assert connection_failure("the source ann@db:5432/shop", PREAMBLE + words).kind is kind


def test_the_sentence_names_the_server_and_the_reason_once() -> None:
    words = f"{PREAMBLE}Connection refused\n\tIs the server running?"
    failure = connection_failure("the source ann@db:5432/shop", words)
    assert failure.message == "No connection to the source ann@db:5432/shop: Connection refused."
