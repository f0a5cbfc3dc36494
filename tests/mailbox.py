"""A inbox on this machine: as much of SMTP as it takes to be sent a mail."""

from __future__ import annotations

import email.policy
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from email.parser import BytesParser
from typing import Self

_PARSER = BytesParser(policy=email.policy.default)


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        self._answer("220 here")
        for line in self.rfile:
            word = line.split(maxsplit=1)[0].upper()
            if word == b"DATA":
                self._answer("354 go on")
                lines = iter(self.rfile.readline, b".\r\n")
                self.server.received.append(_PARSER.parsebytes(b"".join(lines)))
            self._answer("221 bye" if word == b"QUIT" else "250 ok")

    def _answer(self, words: str) -> None:
        self.wfile.write(f"{words}\r\n".encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    received: list[EmailMessage]


class Mailbox:
    """`connection` is Airflow's, as its environment has it."""

    def __init__(self, server: _Server) -> None:
        self.received = server.received
        extra = {"disable_ssl": True, "disable_tls": True, "from_email": "airflow@example.com"}
        place = {"host": "127.0.0.1", "port": server.server_address[1]}
        self.connection = json.dumps({"conn_type": "smtp", **place, "extra": extra})

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Self]:
        with _Server(("127.0.0.1", 0), _Handler) as server:
            server.received = []
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield cls(server)
            finally:
                server.shutdown()
