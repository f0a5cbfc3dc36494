"""TLS in front of a server that has none, in records as large as TLS allows.

Servers up to 16 write records of 8 kB at most, which libpq always reads whole; later ones, and proxies, write larger.
"""

from __future__ import annotations

import multiprocessing
import select
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_RECORD = 16_384
_SSL_REQUEST_BYTES = 8


def certificate(directory: Path) -> Path:
    """A file with a key and its certificate."""
    both = directory / "both.pem"
    command = f"openssl req -new -x509 -days 1 -nodes -subj /CN=localhost -keyout {directory}/key -out {directory}/crt"
    subprocess.run(command.split(), check=True, capture_output=True)
    both.write_text((directory / "key").read_text() + (directory / "crt").read_text())
    return both


@contextmanager
def tls_proxy(port: int, directory: Path) -> Iterator[int]:
    """A port that speaks TLS and passes everything on to the plain one. For one connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(directory))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # A process and not a thread: libpq keeps every thread waiting while it connects.
        serving = multiprocessing.get_context("fork").Process(target=_serve, args=(listener, context, port))
        serving.start()
        try:
            yield listener.getsockname()[1]
        finally:
            serving.kill()
            serving.join()


def _serve(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    plain, _ = listener.accept()
    assert len(plain.recv(_SSL_REQUEST_BYTES, socket.MSG_WAITALL)) == _SSL_REQUEST_BYTES
    plain.sendall(b"S")
    server = socket.create_connection(("127.0.0.1", port))
    with context.wrap_socket(plain, server_side=True) as client, server, suppress(OSError):
        _pass_on(client, server)


def _pass_on(client: ssl.SSLSocket, server: socket.socket) -> None:
    """By one thread, because an SSLSocket is not for two."""
    while True:
        ready = [client] if client.pending() else select.select([client, server], [], [])[0]
        for source in ready:
            data = source.recv(_RECORD)
            if not data:
                return
            (server if source is client else client).sendall(data)
