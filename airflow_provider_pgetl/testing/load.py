"""A load on a database: writers that commit transactions until they are told to end."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psycopg

Session = psycopg.Connection
COMMITTED = "committed"

_OUTAGE_PAUSE = 0.2


class Load:
    """Runs `transact` in each writer, again and again, while the context is entered. `transact` ends the transaction
    that it has begun, and returns what became of it, for instance `COMMITTED`.

    The load can be paused, and everything that it has begun is then committed. It survives a restart of the server. If
    another error ends it, `check` raises that error, and so does the end of the context.
    """

    def __init__(
        self,
        uri: str,
        transact: Callable[[Session, random.Random], str],
        *,
        per_second: float = 40.0,
        seed: int = 1,
        writers: int = 1,
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self._uri = uri
        self._transact = transact
        self._pause_seconds = writers / per_second
        self._broken: list[psycopg.Error] = []
        self._over = threading.Event()
        self._open = threading.Event()
        self._at_work = [threading.Lock() for _ in range(writers)]
        self._threads = [
            threading.Thread(target=self._write, args=(lock, random.Random(seed * 1000 + n)), daemon=True)
            for n, lock in enumerate(self._at_work)
        ]

    def __enter__(self) -> Self:
        self.resume()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._open.set()
        for thread in self._threads:
            thread.join()
        if error is None:
            self.check()

    @property
    def transactions(self) -> int:
        """The number of transactions that were committed."""
        return self.outcomes[COMMITTED]

    @property
    def paused(self) -> bool:
        return not self._open.is_set()

    def pause(self) -> None:
        """Pauses the load. No transaction is under way when this returns."""
        self._open.clear()
        for lock in self._at_work:
            with lock:
                continue

    def resume(self) -> None:
        self._open.set()

    def check(self) -> None:
        """Raises the error that has ended the load, if there is one."""
        if self._broken:
            raise self._broken[0]

    def wait_for(self, transactions: int) -> None:
        """Waits until so many more have been committed."""
        goal = self.transactions + transactions
        while self.transactions < goal:
            self.check()
            time.sleep(0.01)

    def _write(self, at_work: threading.Lock, dice: random.Random) -> None:
        while not self._over.is_set():
            try:
                with psycopg.connect(self._uri) as session:
                    self._write_in(session, at_work, dice)
            except psycopg.OperationalError:
                self._over.wait(_OUTAGE_PAUSE)  # the server is being restarted
            except psycopg.Error as error:
                self._broken.append(error)
                return

    def _write_in(self, session: Session, at_work: threading.Lock, dice: random.Random) -> None:
        while not self._over.wait(dice.uniform(0, 2 * self._pause_seconds)):
            self._open.wait()
            with at_work:
                if self._open.is_set() and not self._over.is_set():
                    self.outcomes[self._transact(session, dice)] += 1
