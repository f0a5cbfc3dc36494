"""Tokens of a cloud in place of a password: what a URI may say of them, and who makes them."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airflow_provider_pgetl.cli.error_messages import passwords_of
from airflow_provider_pgetl.engine.config import tokens
from airflow_provider_pgetl.engine.config.secrets import describe, resolve
from airflow_provider_pgetl.engine.config.tokens import Address
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from tests.iam_gate import KEY, REGION, SECRET, why_not
from tests.raising import raises

HOST = "shop.abc123.eu-west-1.rds.amazonaws.com"
URI = f"postgresql://pgetl@{HOST}/shop?token=aws-iam"
KEYS = "&aws_access_key_id=AKIDEXAMPLE&aws_secret_access_key=wJalrXUtnFEMI%2FK7MDENG%2BbPxRfiCYEXAMPLEKEY"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this machine; and none that a developer has."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_SESSION_TOKEN", "PGSSLMODE", "PGPORT"):
        monkeypatch.delenv(name, raising=False)
    tokens._signer.cache_clear()
    tokens._google_credentials.cache_clear()


def password(uri: str) -> str:
    return str(Address.read(uri).parameters()["password"])


def test_a_uri_with_a_token_is_no_secret_and_reads_as_one_without() -> None:
    uri = f"postgresql://pgetl@{HOST}:5433/shop?connect_timeout=3&token=aws-iam&options=-c%20a%3Db&aws_region=x"
    assert resolve(uri) == uri
    assert describe(uri) == f"pgetl@{HOST}:5433/shop"
    given = Address.read(uri).given
    place = {"user": "pgetl", "host": HOST, "port": "5433", "dbname": "shop"}
    assert given == {**place, "connect_timeout": "3", "options": "-c a=b"}


def test_a_uri_that_names_no_token_stays_what_it_is() -> None:
    plain = "postgresql://u:a?token=b@h/d?sslmode=disable"
    assert tokens.split(plain) == (plain, {})
    assert tokens.split("s3://lake/shop?token=x") == ("s3://lake/shop?token=x", {})


def test_the_token_is_for_this_host_port_role_and_region() -> None:
    assert why_not(password(URI), f"{HOST}:5432", "pgetl", 900) == ""
    assert why_not(password(URI.replace("/shop", ":5433/shop")), f"{HOST}:5433", "pgetl", 900) == ""


def test_keys_of_the_uri_sign_before_those_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ANOTHER")
    assert "Credential=ANOTHER%2F" in password(URI)
    assert why_not(password(URI + KEYS), f"{HOST}:5432", "pgetl", 900) == ""


def test_the_region_is_said_or_in_the_host_s_name_or_the_machine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def region(uri: str) -> str:
        return re.search(r"Credential=[^&]*?%2F\d+%2F([a-z0-9-]+)%2Frds-db", password(uri))[1]

    assert region(f"{URI}&aws_region=us-east-2") == "us-east-2"
    assert region(URI) == REGION
    elsewhere = URI.replace(HOST, "10.0.0.1")
    with raises(ErrorKind.CONFIG, match="needs a region"):
        password(elsewhere)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "ap-south-1")
    tokens._signer.cache_clear()
    assert region(elsewhere) == "ap-south-1"


@pytest.mark.parametrize("sslmode", ["disable", "allow", "prefer"])
def test_a_token_goes_nowhere_without_tls(sslmode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PgetlError, match=f"sslmode={sslmode} allows a connection without TLS") as caught:
        resolve(f"{URI}&sslmode={sslmode}")
    assert "verify-full" in caught.value.remedy
    monkeypatch.setenv("PGSSLMODE", sslmode)
    with pytest.raises(PgetlError, match="without TLS"):
        password(URI)


def test_tls_is_demanded_where_nothing_is_said_and_kept_where_more_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Address.read(URI).parameters()["sslmode"] == "require"
    assert Address.read(f"{URI}&sslmode=verify-full").parameters()["sslmode"] == "verify-full"
    monkeypatch.setenv("PGSSLMODE", "verify-ca")
    assert Address.read(URI).parameters()["sslmode"] == "verify-ca"


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        (URI.replace("aws-iam", "aws-iamm"), 'no token "aws-iamm"; did you mean "aws-iam"'),
        (URI.replace("pgetl@", "pgetl:s3cret@"), "both a password and a token"),
        (URI.replace("pgetl@", ""), "names no user"),
        (URI.replace(HOST, f"{HOST},other"), "for one host"),
        (URI.replace(HOST, ""), "for one host"),
        (URI.replace(HOST, f"{HOST}:1,:2"), "for one host"),
    ],
)
def test_what_cannot_be_meant_is_refused(uri: str, said: str) -> None:
    with raises(ErrorKind.CONFIG, match=said) as caught:
        Address.read(uri)
    assert "s3cret" not in str(caught.value)


def test_keys_in_a_uri_are_secrets_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for secret in (KEYS, "&aws_session_token=x"):
        with pytest.raises(PgetlError, match="carries a password") as caught:
            resolve(URI + secret)
        assert SECRET not in str(caught.value)
    address = Address.read(URI + KEYS)
    assert SECRET not in repr(address)
    assert address.secrets == (SECRET,)
    monkeypatch.setenv("A_URI", URI + KEYS)
    assert {SECRET, "wJalrXUtnFEMI%2FK7MDENG%2BbPxRfiCYEXAMPLEKEY"} <= passwords_of(["env:A_URI"])


def test_without_credentials_there_is_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with raises(ErrorKind.AUTHENTICATION, match="AWS gives no token: Unable to locate credentials"):
        password(URI)


# -- a role that is assumed: moto is the AWS that gives it ------------------------------------------------------------


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://{host}:{port}")
    yield
    server.stop()


def test_a_role_is_assumed_once_and_again_before_it_ends(sts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"{URI}{KEYS}&aws_role_arn=arn:aws:iam::123456789012:role/replication&aws_external_id=shop"

    def signer() -> str:
        token = password(uri)
        assert "X-Amz-Security-Token=" in token
        return re.search(r"Credential=(\w+)", token)[1]

    first = signer()
    assert first != KEY
    assert signer() == first
    monkeypatch.setattr(tokens, "_RENEW_SECONDS", 24 * 3600.0)
    assert signer() != first


def test_an_aws_that_is_out_of_reach_is_trouble_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with raises(ErrorKind.CONNECTION, match="AWS gives no token"):
        password(f"{URI}&aws_role_arn=arn:aws:iam::123456789012:role/replication")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "ServiceUnavailable", ErrorKind.CONNECTION),
        (400, "Throttling", ErrorKind.CONNECTION),
        (403, "AccessDenied", ErrorKind.AUTHENTICATION),
    ],
)
def test_of_an_aws_that_refuses_only_its_code_is_told(
    status: int, code: str, kind: ErrorKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer = f"<ErrorResponse><Error><Code>{code}</Code><Message>{SECRET}</Message></Error></ErrorResponse>"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(PgetlError, match=f"AssumeRole was answered with {code}") as caught:
            password(f"{URI}&aws_role_arn=arn:aws:iam::123456789012:role/replication")
        server.shutdown()
    assert caught.value.kind is kind
    assert SECRET not in str(caught.value)


# -- Google: its library, and a metadata server as the machines of Google have one ------------------------------------


class _Metadata(BaseHTTPRequestHandler):
    """Each token that it gives is another, and is over at once."""

    given: list[str]
    scopes: str

    def do_GET(self) -> None:
        if "/token" in self.path:
            type(self).scopes = self.path
            self.given.append(f"ya29.{len(self.given)}")
            answer = json.dumps({"access_token": self.given[-1], "expires_in": 1, "token_type": "Bearer"})
        else:
            answer = json.dumps({"email": "pgetl@project.iam.gserviceaccount.com", "scopes": [], "aliases": []})
        self.send_response(200)
        for header in (("Metadata-Flavor", "Google"), ("Content-Type", "application/json")):
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Metadata]]:
    _Metadata.given = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Metadata) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        monkeypatch.setenv("GCE_METADATA_IP", address)
        monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent")
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        import google.auth.compute_engine._metadata as library

        monkeypatch.setattr(library, "_METADATA_ROOT", f"http://{address}/computeMetadata/v1/", raising=False)
        monkeypatch.setattr(library, "_METADATA_IP_ROOT", f"http://{address}", raising=False)
        yield _Metadata
        server.shutdown()


def test_google_s_token_is_renewed_when_it_is_over(metadata: type[_Metadata]) -> None:
    uri = "postgresql://pgetl%40project.iam@10.0.0.1/shop?token=gcp-iam"
    assert Address.read(uri).parameters()["sslmode"] == "require"
    first = metadata.given[-1]
    assert password(uri) == metadata.given[-1] != first
    assert "sqlservice.login" in metadata.scopes
    assert "alloydb.login" in metadata.scopes
