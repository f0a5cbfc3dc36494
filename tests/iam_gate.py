"""A PostgreSQL server to which a password is a token of AWS, as it is to RDS.

The gate stands before a real server. It speaks TLS and refuses whoever does not; it asks for the password as RDS does,
in clear; it checks host, port, role, region, age and signature of the token with the secret key, by the published rules
of Signature Version 4 and with nothing of AWS's libraries. Whoever passes is connected to the server as that role, by
its socket, where no password is asked. What a token is refused for is said in RDS's words.

A process of its own: libpq keeps every thread waiting while it connects.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import multiprocessing
import socket
import ssl
import struct
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, quote, urlencode

from airflow_provider_pgetl.testing.servers.postgres_servers import Server
from tests.engine.wal.tls_proxy import certificate

KEY, SECRET, REGION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "eu-west-1"
_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102


class IamGate:
    """`valid`: seconds for which a token can be used, 900 with AWS. The text of a token has whole seconds."""

    def __init__(self, server: Server, folder: Path, valid: float = 900.0) -> None:
        self._socket_path = f"{server.home}/.s.PGSQL.{server.port}"
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate(folder))
        self._valid = valid
        self._log = folder / "gate.log"
        self._log.touch()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._process = multiprocessing.get_context("fork").Process(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()
        self._listening.close()

    def uri(self, dbname: str, user: str = "postgres") -> str:
        return (
            f"postgresql://{user}@127.0.0.1:{self.port}/{quote(dbname, safe='')}?token=aws-iam&aws_region={REGION}"
            "&sslmode=require"
        )

    @property
    def said(self) -> list[str]:
        """Of each who came, `accepted` or why not, in their order."""
        return self._log.read_text().splitlines()

    # -- in the other process -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._let_in, sock=self._listening)
        await server.serve_forever()

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._guarded(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async def _guarded(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        packet, encrypted = await _startup(reader), False
        while (code := struct.unpack_from("!i", packet, 4)[0]) in (_SSL, _GSS):
            writer.write(b"S" if code == _SSL else b"N")
            if code == _SSL:
                await writer.start_tls(self._context)
                encrypted = True
            packet = await _startup(reader)
        if code != _CANCEL:
            why = await self._asked(reader, writer, packet) if encrypted else "it does not speak TLS"
            with self._log.open("a") as log:
                log.write(f"{why or 'accepted'}\n")
            if why:
                await _turn_away(writer, _user(packet))
                return
        behind_reader, behind = await asyncio.open_unix_connection(self._socket_path)
        behind.write(packet)
        await asyncio.gather(_pass_on(reader, behind), _pass_on(behind_reader, writer))

    async def _asked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, packet: bytes) -> str:
        writer.write(b"R" + struct.pack("!ii", 8, 3))
        await writer.drain()
        head = await reader.readexactly(5)
        token = (await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)).rstrip(b"\0").decode()
        return why_not(token, f"127.0.0.1:{self.port}", _user(packet), self._valid)


def why_not(token: str, host: str, user: str, valid: float) -> str:
    """Why the token is none for this host and role now; empty if it is one."""
    place, _, query = token.partition("/?")
    given = dict(parse_qsl(query))
    if place != host or given.get("Action") != "connect" or given.get("DBUser") != user:
        return "it is for something else"
    key, day, region, service, _ = given["X-Amz-Credential"].split("/")
    if (key, region, service) != (KEY, REGION, "rds-db"):
        return "somebody else signed"
    signature, scope = given.pop("X-Amz-Signature"), f"{day}/{region}/{service}/aws4_request"
    canonical = urlencode(sorted(given.items()), quote_via=quote, safe="-_.~")
    request = f"GET\n/\n{canonical}\nhost:{host}\n\nhost\n{hashlib.sha256(b'').hexdigest()}"
    hashed = hashlib.sha256(request.encode()).hexdigest()
    signing = f"AWS4{SECRET}".encode()
    for part in (day, region, service, "aws4_request"):
        signing = hmac.digest(signing, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{given['X-Amz-Date']}\n{scope}\n{hashed}"
    if hmac.digest(signing, text.encode(), "sha256").hex() != signature:
        return "the signature is wrong"
    made = datetime.strptime(given["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    return "it has expired" if int(time.time()) > made + valid else ""


def _user(packet: bytes) -> str:
    words = packet[8:].rstrip(b"\0").split(b"\0")
    return dict(zip(words[::2], words[1::2], strict=False))[b"user"].decode()


async def _startup(reader: asyncio.StreamReader) -> bytes:
    length = await reader.readexactly(4)
    return length + await reader.readexactly(struct.unpack("!i", length)[0] - 4)


async def _turn_away(writer: asyncio.StreamWriter, user: str) -> None:
    fields = f'SFATAL\0VFATAL\0C28000\0MPAM authentication failed for user "{user}"\0\0'.encode()
    writer.write(b"E" + struct.pack("!i", len(fields) + 4) + fields)
    await writer.drain()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
