"""Applying a backlog: our streaming worker beside native logical replication, same servers, same changes, one run.

Each side gets the same backlog twice over: 1 M inserts and 500 k updates of six columns, and 100 k transactions of
one to
three rows. Timed from the moment a side is let loose until the backlog's last change is visible in its destination.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from tests.benchmarks.pair import Pair, native_subscription, our_pipeline

TABLE = """
create table items (
    id bigint primary key, customer int not null, name text not null, total numeric(10, 2) not null,
    changed timestamptz not null default now(), note text
)
"""
MARK = 999_999_999


@dataclass(frozen=True, slots=True)
class Timing:
    what: str
    native: float
    ours: float

    @property
    def ratio(self) -> float:
        """Our rate in terms of native's."""
        return self.native / self.ours

    def __str__(self) -> str:
        return f"{self.what}: native {self.native:.2f} s, pgetl {self.ours:.2f} s, ratio {self.ratio:.2f}"


def large_backlog(source: psycopg.Connection[tuple[object, ...]], inserts: int, updates: int) -> None:
    """Transactions of ten thousand rows."""
    step = 10_000
    for first in range(0, inserts, step):
        source.execute(
            "insert into items select g, g %% 1000, 'name ' || g, g %% 100, now(), repeat('n', (g %% 30)::int) "
            "from generate_series(%s::bigint, %s::bigint) g",
            [first, first + step - 1],
        )
    for first in range(0, updates, step):
        source.execute(
            "update items set total = total + 1, name = name || '!', changed = now() where id between %s and %s",
            [first, first + step - 1],
        )


def small_backlog(source: psycopg.Connection[tuple[object, ...]], transactions: int) -> None:
    """Transactions of one to three rows: an insert, an update of it, an update of another."""
    source.execute("set synchronous_commit = off")
    source.execute(
        f"""
        do $$ begin for i in 1..{transactions} loop
            insert into items values (10000000 + i, 1, 'small', 1, now(), null);
            if i % 3 > 0 then update items set total = total + 1 where id = 10000000 + i; end if;
            if i % 3 > 1 then update items set note = 'x' where id = 10000000 + i / 2; end if;
            commit;
        end loop; end $$
        """
    )


def mark(source: psycopg.Connection[tuple[object, ...]], number: int) -> None:
    source.execute("insert into items values (%s, 0, 'mark', 0, now(), null)", [MARK + number])


def arrival(uri: str, number: int) -> None:
    """Wait until the mark is there."""
    with psycopg.connect(uri, autocommit=True) as connection:
        while connection.execute("select 1 from items where id = %s", [MARK + number]).fetchone() is None:
            time.sleep(0.02)


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    began = time.perf_counter()
    yield lambda: time.perf_counter() - began


def compare(
    pair: Pair, what: str, number: int, make: Callable[[psycopg.Connection[tuple[object, ...]]], None]
) -> Timing:
    """Both sides on the same backlog, one after the other."""
    with psycopg.connect(pair.source, autocommit=True) as source:
        make(source)
        mark(source, number)
    with timed() as elapsed:
        pair.enable_native()
        arrival(pair.native, number)
        native = elapsed()
    pair.disable_native()
    stop = threading.Event()
    with timed() as elapsed:
        worker = threading.Thread(target=pair.stream, args=(stop,))
        worker.start()
        arrival(pair.ours, number)
        ours = elapsed()
    stop.set()
    worker.join()
    return Timing(what, native, ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--major", type=int, default=16)
    options = parser.parse_args()
    scale = options.scale
    with Pair.started(options.major, TABLE, "items") as pair, native_subscription(pair), our_pipeline(pair):
        inserts, updates = int(1_000_000 * scale), int(500_000 * scale)
        large = compare(pair, f"{inserts} inserts, {updates} updates", 1, lambda s: large_backlog(s, inserts, updates))
        print(large, flush=True)
        count = int(100_000 * scale)
        print(compare(pair, f"{count} small transactions", 2, lambda s: small_backlog(s, count)), flush=True)
        pair.expect_equal()


if __name__ == "__main__":
    main()
