"""References to connections, and what may be said aloud."""

import traceback
from pathlib import Path

import pytest

from airflow_provider_pgetl.engine.config.secrets import describe, resolve, secrets_in
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from tests.raising import raises

URI = "postgresql://ann:s3cret@db.example:5433/shop"


def test_a_variable_is_read() -> None:
    assert resolve("env:SOURCE", {"SOURCE": f"{URI}\n"}) == URI


@pytest.mark.parametrize("environment", [{}, {"SOURCE": "  "}])
def test_a_variable_that_is_not_set_is_named(environment: dict[str, str]) -> None:
    with raises(ErrorKind.CONFIG, match="SOURCE is not set"):
        resolve("env:SOURCE", environment)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "uri"
    path.write_text(f"{URI}\n")
    assert resolve(f"file:{path}") == URI


def test_a_file_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(PgetlError, match="cannot be read: No such file"):
        resolve(f"file:{tmp_path / 'absent'}")
    (tmp_path / "empty").touch()
    with pytest.raises(PgetlError, match="empty is empty"):
        resolve(f"file:{tmp_path / 'empty'}")


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://ann@db/shop",
        "postgresql://db/shop?sslmode=verify-full",
        "host=db dbname=shop",
        "/data/lake",
        "s3://host:9000/a@b",
    ],
)
def test_a_uri_without_a_password_is_itself(uri: str) -> None:
    assert resolve(uri) == uri


@pytest.mark.parametrize(
    "uri",
    [
        URI,
        "postgres://db/shop?user=ann&password=s3cret",
        "host=db password=s3cret",
        "postgresql://db/shop?sslpassword=s3cret",
        "s3://key:s3cret@bucket/path",
        "postgresql://ann:s3cret@db:port/%zz?nonsense",
        "postgresql://db/shop?scram_client_key=s3cret",
        "host=db password=s3cret nonsense=1",
        "s3://key:s3cret/with@bucket/path",
        "s3://key:s3cret?with@bucket/path",
    ],
)
def test_a_literal_password_is_refused_and_never_quoted(uri: str) -> None:
    with raises(ErrorKind.CONFIG) as caught:
        resolve(uri)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value)).replace(uri, "")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        (URI, "ann@db.example:5433/shop"),
        ("postgresql://db/shop", "db:5432/shop"),
        ("postgresql://ann:s3cret@a:5432,b:5433/shop", "ann@a:5432,b:5433/shop"),
        ("postgresql://ann:s3cret@a,b:5433,[::1]/shop?target_session_attrs=any", "ann@a:5432,b:5433,::1:5432/shop"),
        ("host=a,b hostaddr=10.0.0.1,10.0.0.2 password=s3cret sslpassword=s3cret2 dbname=shop", "a:5432,b:5432/shop"),
        ("postgresql:///shop?service=shop&passfile=/run/pass", "service shop/shop"),
        ("host=/run/postgresql dbname=shop password=s3cret", "/run/postgresql:5432/shop"),
        ("s3://key:s3cret@bucket/path?token=s3cret", "s3://bucket/path"),
        ("postgresql://ann:s3cret?with/1@db/shop", "postgresql://…"),
        ("s3://key:s3cret?with@bucket/path", "s3://…"),
        ("env:SOURCE", "env:SOURCE"),
    ],
)
def test_a_connection_is_described_without_its_secrets(uri: str, said: str) -> None:
    assert describe(uri) == said


@pytest.mark.parametrize(
    "name", ["password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"]
)
def test_every_secret_parameter_of_libpq_is_kept_out_of_what_is_printed(name: str) -> None:
    assert secrets_in(f"postgresql://db/shop?{name}=s3cret") == ("s3cret",)
