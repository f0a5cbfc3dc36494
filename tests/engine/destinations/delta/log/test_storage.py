"""What kind of trouble a store is in, whatever its files are called."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder, storage_error
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import TableLog
from airflow_provider_pgetl.engine.model.errors import ErrorKind
from tests.raising import raises

# In a process of its own: delta-rs holds the interpreter's lock in some of its requests.
_REFUSING = """
import http.server
class Refusing(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(STATUS)
        self.send_header("content-length", "0")
        self.end_headers()
    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def answering(status: int) -> Iterator[TableFolder]:
    """A store that gives every request this answer."""
    command = [sys.executable, "-c", _REFUSING.replace("STATUS", str(status))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        address = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        yield TableFolder(
            "s3://lake/forbidden/t403",
            {
                "AWS_ENDPOINT_URL": address,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "k",
                "AWS_SECRET_ACCESS_KEY": "s",
                "AWS_MAX_RETRIES": "0",
            },
        )
        server.terminate()


REQUESTS: list[Callable[[TableFolder], object]] = [
    lambda place: place.read(f"_delta_log/{403:020}.json"),
    lambda place: place.write("403.json", b"{}"),
    lambda place: place.list(""),
    lambda place: TableLog(place, "shop").refresh(),
]


@pytest.mark.parametrize(
    ("status", "kind"), [(401, ErrorKind.PRIVILEGE), (403, ErrorKind.PRIVILEGE), (404, ErrorKind.CONNECTION)]
)
def test_what_a_store_answers_says_who_is_to_act(answering: TableFolder, kind: ErrorKind) -> None:
    for request in REQUESTS:
        with raises(kind):
            request(answering)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), ErrorKind.PRIVILEGE),
        (OSError("Unable to open /lake/x: Permission denied (os error 13)"), ErrorKind.PRIVILEGE),
        (OSError(errno.ENOSPC, "No space left on device"), ErrorKind.RESOURCES),
        (OSError("Unable to write /lake/x: No space left on device (os error 28)"), ErrorKind.RESOURCES),
        (FileNotFoundError(errno.ENOENT, "/lake/forbidden/00000000000000000403.json"), ErrorKind.CONNECTION),
        (OSError("Object at location accessdenied/403 not found\n  404 Not Found"), ErrorKind.CONNECTION),
        (OSError('Generic Config error\n  failed to parse "zz" as Duration'), ErrorKind.CONFIG),
    ],
)
def test_what_the_operating_system_says_too(error: OSError, kind: ErrorKind) -> None:
    assert storage_error("a file", error).kind is kind


S3 = {"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "hunter2", "max_retries": "0"}


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        (
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true"},
            ErrorKind.CONNECTION,
            r": Generic S3 error: Connection refused \(os error 111\)\. ",
        ),
        ({"AWS_ENDPOINT_URL": "https://nowhere.invalid"}, ErrorKind.CONNECTION, r": Generic S3 error: \w.+\. Check"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, ErrorKind.CONFIG, r"URL scheme is not allowed\. .*ALLOW_HTTP"),
    ],
)
def test_why_a_store_cannot_be_used_is_told(options: dict[str, str], kind: ErrorKind, words: str) -> None:
    for request in REQUESTS:
        with raises(kind, match=words):
            request(TableFolder("s3://lake/shop", S3 | options))


def test_what_a_store_answers_in_full_is_not_repeated() -> None:
    answer = (
        "Generic S3 error\n  \x1b[31m↳\x1b[0m 400 Bad Request: <Error><AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>\n"
    )
    said = str(storage_error("a file", OSError(answer)))
    assert "a file: Generic S3 error: 400 Bad Request. " in said


def test_a_panic_of_the_library_is_a_mistake_in_the_options() -> None:
    place = TableFolder("s3://lake/shop", S3 | {"AWS_ENDPOINT_URL": "http://store:99999"})
    for request in REQUESTS:
        with raises(ErrorKind.CONFIG):
            request(place)


@pytest.mark.parametrize("address", ["", "localhost", "localhost:9000", "//store", "http://:9000", "http://store:port"])
def test_an_address_that_is_none_is_a_mistake_in_the_options(address: str) -> None:
    with raises(ErrorKind.CONFIG, match=r"^storage\.aws_endpoint_url: it is no URL of a store\. .*http://"):
        DeltaDestination("s3://lake/tables", "shop", {"storage": S3 | {"aws_endpoint_url": address}})


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"])
def test_nor_may_the_environment_give_such_an_address(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "localhost:9000")
    with raises(ErrorKind.CONFIG, match=f"^The environment variable {name} is no URL of a store"):
        DeltaDestination("s3://lake/tables", "shop", {"storage": S3})
    DeltaDestination("s3://lake/tables", "shop", {"storage": S3 | {"AWS_ENDPOINT": "http://127.0.0.1:1"}})
    DeltaDestination("/lake", "shop")


def test_a_probe_leaves_nothing(tmp_path: Path) -> None:
    lake = tmp_path / "mistyped" / "lake"
    assert DeltaDestination(str(lake), "shop").inspect() == []
    assert list(tmp_path.iterdir()) == []
    lake.mkdir(parents=True)
    assert DeltaDestination(str(lake), "shop").inspect() == []
    assert list(lake.iterdir()) == []


def test_a_place_that_cannot_be_written_keeps_its_kind(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (found,) = DeltaDestination(str(tmp_path / "file"), "shop").inspect()
    assert found.kind is ErrorKind.CONNECTION
