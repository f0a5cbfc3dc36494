"""What kind of trouble a store is in, whatever its files are called."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from airflow_provider_pgetl.engine.destinations.delta.log import TableLog
from airflow_provider_pgetl.engine.destinations.delta.storage import Place, storage_error
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError

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
def answering(status: int) -> Iterator[Place]:
    """A store that gives every request this answer."""
    command = [sys.executable, "-c", _REFUSING.replace("STATUS", str(status))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        address = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        yield Place(
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


REQUESTS: list[Callable[[Place], object]] = [
    lambda place: place.read(f"_delta_log/{403:020}.json"),
    lambda place: place.write("403.json", b"{}"),
    lambda place: place.list(""),
    lambda place: TableLog(place, "shop").refresh(),
]


@pytest.mark.parametrize(
    ("status", "kind"), [(401, ErrorKind.PRIVILEGE), (403, ErrorKind.PRIVILEGE), (404, ErrorKind.CONNECTION)]
)
def test_what_a_store_answers_says_who_is_to_act(answering: Place, kind: ErrorKind) -> None:
    for request in REQUESTS:
        with pytest.raises(PgetlError) as caught:
            request(answering)
        assert caught.value.kind is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), ErrorKind.PRIVILEGE),
        (OSError("Unable to open /lake/x: Permission denied (os error 13)"), ErrorKind.PRIVILEGE),
        (OSError(errno.ENOSPC, "No space left on device"), ErrorKind.RESOURCES),
        (OSError("Unable to write /lake/x: No space left on device (os error 28)"), ErrorKind.RESOURCES),
        (FileNotFoundError(errno.ENOENT, "/lake/forbidden/00000000000000000403.json"), ErrorKind.CONNECTION),
        (OSError("Object at location accessdenied/403 not found\n  404 Not Found"), ErrorKind.CONNECTION),
    ],
)
def test_what_the_operating_system_says_too(error: OSError, kind: ErrorKind) -> None:
    assert storage_error("a file", error).kind is kind
