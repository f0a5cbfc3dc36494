"""Getting to the state database: where it is, and what every session there is pinned to.

The URI is in libpq's own form, several hosts included, and is only ever parsed by libpq. Its password is kept out of
every `repr`, and errors about the URI do not quote it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import QueuePool

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.pooling import BACKEND, expect_kept_sessions, expect_own_session
from airflow_provider_pgetl.engine.secrets import READABLE, describe
from airflow_provider_pgetl.engine.session_settings import pinning
from airflow_provider_pgetl.engine.several_hosts import of_the_primary
from airflow_provider_pgetl.engine.tokens import Address

STATE_DATABASE = "the state database"
CONNECT_SECONDS = 10
BUSY_SECONDS = 10

# A server that vanished without a word is noticed within some 20 s instead of the kernel's many minutes.
_DEFAULTS: Mapping[str, Any] = {
    "client_encoding": "utf8",
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


@dataclass(frozen=True, slots=True)
class Place:
    """A state database: how to connect to it, and how to speak of it."""

    name: str
    address: Address = field(repr=False)

    @classmethod
    def parse(cls, uri: str, role: str = STATE_DATABASE) -> Place:
        """`role`: what people know the database as, if it is there for something else as well."""
        try:
            return cls(f"{role} {describe(uri)}", Address.read(uri))
        except psycopg.ProgrammingError:
            pass  # raised below, outside this block: libpq's words quote the URI
        raise PgetlError(
            ErrorKind.CONFIG,
            f"The URI of {role} cannot be read.",
            remedy=READABLE,
        )

    def __str__(self) -> str:
        return self.name

    def connect(self, application_name: str, **more: Any) -> psycopg.Connection[Any]:
        """A session in autocommit, pinned. Statements are not prepared: a pooler in between may not know them."""

        def open_session() -> psycopg.Connection[Any]:
            return psycopg.connect(**self._parameters(application_name, more))

        connection = open_session()
        try:
            expect_own_session(connection, open_session, self.name)
            connection.execute(pinning())
        except BaseException:
            connection.close()
            raise
        return connection

    async def connect_async(self, application_name: str) -> psycopg.AsyncConnection[Any]:
        """The same, for an event loop."""
        if self.address.settings:  # a token may have to be waited for
            parameters = await asyncio.to_thread(self._parameters, application_name, {})
        else:
            parameters = self._parameters(application_name, {})
        connection = await psycopg.AsyncConnection.connect(**parameters)

        def open_session() -> psycopg.Connection[Any]:
            return psycopg.connect(**self._parameters(application_name, {}))

        try:
            answer = await (await connection.execute(BACKEND)).fetchone()
            if answer != (connection.info.backend_pid,):
                await asyncio.to_thread(expect_kept_sessions, open_session, self.name)
            await connection.execute(pinning())
        except BaseException:
            await connection.close()
            raise
        return connection

    def _parameters(self, application_name: str, more: Mapping[str, Any]) -> dict[str, Any]:
        ours = {"application_name": application_name, "autocommit": True, "prepare_threshold": None}
        return {**_DEFAULTS, **of_the_primary(self.address.parameters()), **more, **ours}

    def pool(self, application_name: str) -> Engine:
        """A small pool; each connection is tried before use, so that a restarted server is not noticed."""

        def connect() -> psycopg.Connection[Any]:
            connection = self.connect(application_name)
            connection.autocommit = False
            return connection

        return create_engine(
            "postgresql+psycopg://",
            creator=connect,
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=3,
            pool_timeout=BUSY_SECONDS,
            pool_pre_ping=True,
            hide_parameters=True,
        )
