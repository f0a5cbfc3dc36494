"""A shop of few and small tables, for tests that need many runs: two that change without rest, some that never do."""

from __future__ import annotations

import itertools
import threading
from typing import Self

import psycopg

from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.chaos.shop import ShopTable

_ORDERS = ShopTable("public.orders", "create table public.orders (id int primary key, what text)")
_NOTES = ShopTable("public.notes", "create table public.notes (line text, n int)")
_QUIET = tuple(
    ShopTable(f"public.quiet_{n}", f"create table public.quiet_{n} (id int primary key, what text)") for n in range(4)
)
SMALL_SHOP = (_ORDERS, _NOTES, *_QUIET)

_FILE = """
id = "matrix"
tables = ["public.*"]
[source]
uri = "env:PGETL_SOURCE_URI"
{source}
[state]
uri = "env:PGETL_STATE_URI"
[destination]
type = "postgres"
uri = "env:PGETL_DESTINATION_URI"
[copy]
range_bytes = "16KiB"
group_bytes = "{group}"
table_workers = {workers}
"""


def small_file(group: str = "1MiB", workers: int = 2, source: str = "") -> str:
    """The pipeline file; `source` are further lines of its section."""
    return _FILE.format(group=group, workers=workers, source=source)


def create_small_shop(source: Database) -> None:
    with source.connect() as session:
        for table in SMALL_SHOP:
            session.execute(table.create.encode())
        session.execute("alter table public.notes replica identity full")
        session.execute("insert into public.orders select n, 'old ' || n from generate_series(1, 2000) n")
        session.execute("insert into public.notes select 'line', n % 5 from generate_series(1, 300) n")
        for quiet in _QUIET:
            session.execute(f"insert into {quiet.table.sql} values (1, 'never changed')".encode())


class Truncates:
    """Empties a table again and again, and fills it a little, until it is left."""

    def __init__(self, source: Database, table: str, seconds: float = 0.1) -> None:
        self._source = source
        self._statements = (f"truncate {table} restart identity", f"insert into {table} values (%s, 'once more')")
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._truncate)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _truncate(self) -> None:
        """By turns in one transaction with what fills it, and alone."""
        truncate, insert = self._statements
        with self._source.connect(autocommit=False) as session:
            for number in itertools.count():
                session.execute(truncate.encode())
                if number % 2:
                    session.commit()
                session.execute(insert.encode(), [number])
                session.commit()
                if self._over.wait(self._seconds):
                    return


class Changes:
    """One writer that never rests, until it is left."""

    def __init__(self, source: Database) -> None:
        self._source = source
        self._over = threading.Event()
        self.done = 0
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def wait_for(self, transactions: int) -> None:
        """Until so many more have been committed."""
        goal = self.done + transactions
        while self.done < goal and self._thread.is_alive():
            self._over.wait(0.01)

    def _write(self) -> None:
        while not self._over.is_set():
            try:
                self._write_until_it_breaks()
            except psycopg.OperationalError:  # the source is away, which some tests see to
                self._over.wait(0.2)

    def _write_until_it_breaks(self) -> None:
        with self._source.connect(autocommit=False) as session:
            while not self._over.wait(0.02):
                self._transact(session, self.done + 1)
                self.done += 1

    def _transact(self, session: psycopg.Connection, number: int) -> None:
        for statement, *values in (
            ("update public.orders set what = %s where id = %s", f"w{number}", number % 500),
            ("delete from public.orders where id = %s", 10_000 + number),
            ("update public.orders set id = id + 10000 where id = %s", number),
            ("insert into public.orders values (%s, 'new') on conflict do nothing", -number),
            ("insert into public.notes values ('again', %s)", number % 5),
            (_DELETE_NOTE, number % 7),
        ):
            session.execute(statement, values)
        session.commit()


_DELETE_NOTE = "delete from public.notes where ctid = (select ctid from public.notes where n = %s limit 1)"
