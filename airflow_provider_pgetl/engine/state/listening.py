"""Hearing of other writers: LISTEN on a connection of its own, with polling of the revision behind it.

The notification is a hint that makes waiting short; the revision in the pipeline's row is the truth. So nothing is
missed when the connection was down, or where a pooler swallows notifications: it is then heard a little later.

Not for several threads at once; the store sees to that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_pgetl.engine.state.sql.pipelines import channel

POLL_SECONDS = 2.0
SLICE_SECONDS = 0.25

_REVISION = "select revision from pgetl.pipelines where key = %s"

Connect = Callable[[], psycopg.Connection[Any]]


class Listener:
    """Waits for a pipeline's revision to differ from the one that the store knows."""

    def __init__(self, connect: Connect, pipeline: int) -> None:
        self._connect = connect
        self._pipeline = pipeline
        self._connection: psycopg.Connection[Any] | None = None
        self._polled = -inf
        self._stopped = False

    def hear(self, known: int, timeout: float) -> int | None:
        """The new revision, if it moves on within the time. A connection found broken is replaced, once."""
        deadline = time.monotonic() + timeout
        if self._connection is not None:
            try:
                return self._hear(self._connection, known, deadline)
            except psycopg.OperationalError:
                self.disconnect()
        return self._hear(self._listen(), known, deadline)

    def stop(self) -> None:
        """Make a `hear` in another thread return soon."""
        self._stopped = True

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _listen(self) -> psycopg.Connection[Any]:
        self._connection = connection = self._connect()
        connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel(self._pipeline))))
        self._polled = -inf
        return connection

    def _hear(self, connection: psycopg.Connection[Any], known: int, deadline: float) -> int | None:
        while not self._stopped:
            left = max(deadline - time.monotonic(), 0)
            if (stored := self._poll(connection, known)) != known:
                return stored
            notices = list(connection.notifies(timeout=min(left, SLICE_SECONDS), stop_after=1))
            told = max((int(notice.payload) for notice in notices if notice.payload.isdecimal()), default=known)
            if told > known:
                return told
            if left == 0:
                break
        return None

    def _poll(self, connection: psycopg.Connection[Any], known: int) -> int:
        """The stored revision, or the known one until the next poll is due. Destroyed is later than all."""
        if time.monotonic() - self._polled < POLL_SECONDS:
            return known
        row = connection.execute(_REVISION, (self._pipeline,)).fetchone()
        self._polled = time.monotonic()
        return known + 1 if row is None else int(row[0])
