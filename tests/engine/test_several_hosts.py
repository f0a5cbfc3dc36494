"""Which of several hosts is meant."""

import psycopg
import pytest

from airflow_provider_pgetl.engine.connection_failures import connection_failure
from airflow_provider_pgetl.engine.errors import ErrorKind
from airflow_provider_pgetl.engine.several_hosts import of_the_primary


@pytest.mark.parametrize("given", [{"host": "a,b"}, {"hostaddr": "10.0.0.1,10.0.0.2"}])
def test_of_several_the_primary_is_meant(given: dict[str, str]) -> None:
    assert of_the_primary(given) == {**given, "target_session_attrs": "primary"}


@pytest.mark.parametrize("given", [{"host": "a"}, {}, {"host": "a,b", "target_session_attrs": "any"}])
def test_what_is_said_stays_as_it_is(given: dict[str, str]) -> None:
    assert of_the_primary(given) == given


def test_the_environment_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "a,b")
    assert of_the_primary({}) == {"target_session_attrs": "primary"}
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "any")
    assert of_the_primary({}) == {}


def failure(*answers: str) -> psycopg.OperationalError:
    lines = [f"- host: 'h{n}', port: '5432', hostaddr: '10.0.0.{n}': {words}" for n, words in enumerate(answers)]
    return psycopg.OperationalError("\n".join([answers[-1], "Multiple connection attempts failed.", *lines]))


DOWN = 'connection failed: connection to server at "10.0.0.1", port 5432 failed: Connection refused\n\tIs it running?'
STANDBY = 'connection failed: connection to server at "10.0.0.2", port 5432 failed: server is in hot standby mode'
REFUSES = 'connection failed: connection to server at "10.0.0.2", port 5432 failed: FATAL:  no pg_hba.conf entry'


def test_each_host_is_told_with_its_answer() -> None:
    refused = connection_failure("the source h", failure(DOWN, STANDBY))
    assert refused.kind is ErrorKind.CONNECTION
    assert refused.message == (
        "No connection to the source h: h0:5432: Connection refused; h1:5432: server is in hot standby mode."
    )
    assert "target_session_attrs" in refused.remedy


def test_one_that_refuses_for_good_ends_nothing_while_another_is_only_away() -> None:
    assert connection_failure("x", failure(DOWN, REFUSES)).kind is ErrorKind.CONNECTION
    assert connection_failure("x", failure(REFUSES, REFUSES)).kind is ErrorKind.AUTHENTICATION
