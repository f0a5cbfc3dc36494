"""A connection pooler as pgbouncer is one, small enough to run in the tests' own process.

A client keeps its server session for a transaction (`keeps_sessions`: for as long as it is connected), and what the
session holds stays with it for whoever is next. `replication` in the startup packet is refused in pgbouncer's words,
and the process id that a client is told is the pooler's own invention. Poolers that pass replication through, as
pgbouncer does from 1.23 on, are `Pooler(server, passes_replication=True)`.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections import defaultdict
from types import TracebackType
from typing import Self
from urllib.parse import quote

from airflow_provider_pgetl.testing.servers.postgres_servers import Server

_NO_TLS = (80877103, 80877104)
_CANCEL = 80877102
_pids = itertools.count(1_000_000)

Parameters = dict[bytes, bytes]


class Pooler:
    """Listens until closed; each client is a thread."""

    def __init__(self, server: Server, *, keeps_sessions: bool = False, passes_replication: bool = False) -> None:
        self._socket_path = f"{server.home}/.s.PGSQL.{server.port}"
        self._keeps_sessions = keeps_sessions
        self._passes_replication = passes_replication
        self._idle: dict[bytes, list[_Session]] = defaultdict(list)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        for session in itertools.chain.from_iterable(self._idle.values()):
            session.close()

    def uri(self, dbname: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(dbname, safe='')}?sslmode=disable"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                parameters = _startup(client)
                if parameters is not None:
                    self._greet_and_relay(client, parameters)
            except (OSError, EOFError):
                return

    def _greet_and_relay(self, client: socket.socket, parameters: Parameters) -> None:
        if b"replication" in parameters and not self._passes_replication:
            client.sendall(_refusal("unsupported startup parameter: replication"))
            return
        keeps = self._keeps_sessions or b"replication" in parameters
        session = self._take(parameters)
        client.sendall(session.greeting)
        if not keeps:
            session = self._give_back(parameters, session)
        try:
            while (message := _message(client))[:1] != b"X":
                session = session or self._take(parameters)
                session.connection.sendall(message)
                if message[:1] in (b"Q", b"S", b"c", b"f") and session.answer(client) and not keeps:
                    session = self._give_back(parameters, session)
        finally:
            if session is not None:
                session.close()

    def _take(self, parameters: Parameters) -> _Session:
        idle = self._idle[parameters[b"database"]]
        return idle.pop() if idle and b"replication" not in parameters else _Session(self._socket_path, parameters)

    def _give_back(self, parameters: Parameters, session: _Session) -> None:
        self._idle[parameters[b"database"]].append(session)


class _Session:
    """A session on the server. `greeting` is what a client is to hear of it."""

    def __init__(self, path: str, parameters: Parameters) -> None:
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(path)
        body = struct.pack("!i", 196608) + b"".join(k + b"\0" + v + b"\0" for k, v in parameters.items()) + b"\0"
        self.connection.sendall(struct.pack("!i", len(body) + 4) + body)
        self.greeting = b""
        while True:
            message = _message(self.connection)
            if message[:1] == b"K":
                message = message[:5] + struct.pack("!ii", next(_pids), 0)
            self.greeting += message
            if message[:1] in (b"Z", b"E"):
                return

    def answer(self, client: socket.socket) -> bool:
        """Relay until the server is ready, or wants a COPY's rows; whether no transaction is open then."""
        while True:
            message = _message(self.connection)
            client.sendall(message)
            if message[:1] == b"Z":
                return message[5:] == b"I"
            if message[:1] in (b"G", b"W"):
                return False

    def close(self) -> None:
        self.connection.close()


def _startup(client: socket.socket) -> Parameters | None:
    while True:
        (size,) = struct.unpack("!i", _exactly(client, 4))
        body = _exactly(client, size - 4)
        (code,) = struct.unpack("!i", body[:4])
        if code in _NO_TLS:
            client.sendall(b"N")
        elif code == _CANCEL:
            return None
        else:
            words = body[4:].rstrip(b"\0").split(b"\0")
            return dict(zip(words[::2], words[1::2], strict=False))


def _message(peer: socket.socket) -> bytes:
    head = _exactly(peer, 5)
    return head + _exactly(peer, struct.unpack("!i", head[1:])[0] - 4)


def _exactly(peer: socket.socket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        part = peer.recv(size - len(read))
        if not part:
            raise EOFError
        read += part
    return read


def _refusal(words: str) -> bytes:
    body = b"SFATAL\0VFATAL\0C08P01\0M" + words.encode() + b"\0\0"
    return b"E" + struct.pack("!i", len(body) + 4) + body
