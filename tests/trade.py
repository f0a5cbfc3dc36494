"""What happens in the shop while it is replicated: writers that insert, update, move and swap keys, delete, truncate
and roll back at random, in transactions over several tables.

Each writer has a seed of its own. What two writers do to each other (deadlocks, locks that take too long, keys that
are taken) ends the transaction, as it does in an application, and is no error.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import psycopg

from airflow_provider_pgetl.engine.model.tables import parse_table
from airflow_provider_pgetl.testing.load import COMMITTED, Load, Session
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.shop import SHOP

Deed = Callable[[Session, random.Random], None]

_WRITERS = 4
_SETTLED_BY_RETRY = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.ForeignKeyViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.CheckViolation,
)


# -- deeds ------------------------------------------------------------------------------------------------------------


def click(session: Session, dice: random.Random) -> None:
    start, count = dice.randrange(10**6, 10**9), dice.choice([1, 1, 3, 40])
    session.execute(
        "insert into public.clicks select n, n %% 5, null, 'new', now(), true from generate_series(%s, %s) n",
        [start, start + count - 1],
    )


def revise_clicks(session: Session, dice: random.Random) -> None:
    session.execute(
        "update public.clicks set note = %s, amount = amount + 1 where id between %s and %s",
        [f"revised {dice.random()}", *_span(dice, 2000, 30)],
    )


def drop_clicks(session: Session, dice: random.Random) -> None:
    session.execute("delete from public.clicks where id between %s and %s", _span(dice, 2000, 3))


def register_customer(session: Session, dice: random.Random) -> None:
    number = dice.randrange(400)
    session.execute(
        """insert into public.customers values (%s, %s, %s, %s, %s, 0)
           on conflict (id) do update set name = excluded.name, tags = excluded.tags""",
        [number, f"Customer {dice.random()}", None, ["x", None, 'y"'], dice.choice(["sad", "it's, fine", None])],
    )


def place_orders(session: Session, dice: random.Random) -> None:
    session.execute(
        """insert into public.orders
           select id, %s, %s, now() from public.customers where id between %s and %s on conflict do nothing""",
        [dice.randrange(10), round(dice.uniform(-1, 1e6), 4), *_span(dice, 400, 10)],
    )


def renumber_customer(session: Session, dice: random.Random) -> None:
    """Moves the keys of the orders too."""
    session.execute("update public.customers set id = %s where id = %s", [dice.randrange(400), dice.randrange(400)])


def lose_customers(session: Session, dice: random.Random) -> None:
    session.execute("delete from public.customers where id between %s and %s", _span(dice, 400, 3))


def transfer(session: Session, dice: random.Random) -> None:
    """The sum over both tables stays."""
    amount, account, vault = dice.randrange(100), dice.randrange(1, 51), dice.randrange(1, 51)
    session.execute("update inventory.accounts set amount = amount - %s where id = %s", [amount, account])
    session.execute("update inventory.vaults set amount = amount + %s where id = %s", [amount, vault])


def fill_empty(session: Session, dice: random.Random) -> None:
    session.execute(
        "insert into public.empty_at_first values (%s, %s) on conflict (id) do update set what = excluded.what",
        [dice.randrange(100), dice.choice([None, "", "something"])],
    )


def measure(session: Session, dice: random.Random) -> None:
    session.execute(
        "insert into public.measures values (%s, %s, %s, %s)",
        [dice.randrange(10**6), dice.randrange(2000, 2040), dice.choice(["eu", "uk", "us"]), dice.gauss(0, 1e9)],
    )


def move_measures(session: Session, dice: random.Random) -> None:
    """Into another leaf."""
    session.execute(
        "update public.measures set year = %s, region = %s where id between %s and %s",
        [dice.randrange(2000, 2040), dice.choice(["eu", "us", "mars"]), *_span(dice, 2000, 5)],
    )


def drop_measures(session: Session, dice: random.Random) -> None:
    session.execute("delete from public.measures where id between %s and %s", _span(dice, 2000, 3))


def sight(session: Session, dice: random.Random) -> None:
    session.execute(
        "insert into public.sightings select %s, %s, %s, null from generate_series(1, %s)",
        [dice.choice([None, "thing 1", "thing 2"]), dice.choice([None, 1]), 0.1, dice.randrange(1, 4)],
    )


def reconsider_sighting(session: Session, dice: random.Random) -> None:
    """One of several rows that are the same."""
    session.execute(
        """update public.sightings set how_many = %s
           where ctid = (select ctid from public.sightings offset %s limit 1)""",
        [dice.choice([None, 1, 2]), dice.randrange(300)],
    )


def forget_sightings(session: Session, dice: random.Random) -> None:
    session.execute(
        "delete from public.sightings where ctid in (select ctid from public.sightings offset %s limit %s)",
        [dice.randrange(300), dice.randrange(1, 5)],
    )


def retitle_document(session: Session, dice: random.Random) -> None:
    """The megabyte is not touched, and so not sent."""
    session.execute(
        "update public.documents set title = %s where id = %s", [f"Title {dice.random()}", dice.randrange(1, 9)]
    )


def renumber_document(session: Session, dice: random.Random) -> None:
    """The key moves, the megabyte is not sent with it."""
    session.execute("update public.documents set id = %s where id = %s", [dice.randrange(1, 30), dice.randrange(1, 30)])


def rewrite_document(session: Session, dice: random.Random) -> None:
    session.execute(
        "update public.documents set body = repeat(md5(%s), %s) where id = %s",
        [str(dice.random()), dice.choice([1, 4000, 32768]), dice.randrange(1, 9)],
    )


def move_seat(session: Session, dice: random.Random) -> None:
    session.execute(
        "update public.seats set seat = %s where row_no = %s and seat = %s",
        [dice.randrange(1, 40), dice.randrange(1, 11), dice.randrange(1, 40)],
    )


def swap_seats(session: Session, dice: random.Random) -> None:
    row, one, other = dice.randrange(1, 11), dice.randrange(1, 21), dice.randrange(1, 21)
    move = "update public.seats set seat = %s where row_no = %s and seat = %s"
    for to, at in ((-1, one), (one, other), (other, -1)):
        session.execute(move, [to, row, at])


def shift_row(session: Session, dice: random.Random) -> None:
    """A chain of moves, each to where the one before it was."""
    row = dice.randrange(1, 11)
    for seat in range(21, 14, -1):
        session.execute("update public.seats set seat = %s where row_no = %s and seat = %s", [seat + 1, row, seat])


def replace_guest(session: Session, dice: random.Random) -> None:
    """A row goes and another comes under its key."""
    row, seat = dice.randrange(1, 11), dice.randrange(1, 21)
    session.execute("delete from public.seats where row_no = %s and seat = %s", [row, seat])
    session.execute("insert into public.seats values (%s, %s, %s, %s)", [row, seat, "new", "t" * dice.randrange(3000)])


def rename_weird(session: Session, dice: random.Random) -> None:
    session.execute(
        """insert into "Weird ""Schema"."Weird ""Name" values (%s, %s, 1, null, '\\N', 2)
           on conflict ("select") do update set "Ünï, cöde" = excluded."Ünï, cöde" """,
        [dice.randrange(150), dice.choice([None, "", "\\N", "NULL", "ü", "\t\n\r", "'\"\\"])],
    )
    session.execute('delete from "Weird ""Schema"."Weird ""Name" where "select" = %s', [dice.randrange(150)])


def change_keyword(session: Session, dice: random.Random) -> None:
    key = dice.choice(["", " ", "key 1", "key 2", "ключ", "a\\b", "'", '"'])
    session.execute('delete from public."select" where "from" = %s', [key])
    session.execute('insert into public."select" values (%s, %s)', [key, str(dice.random())])


def change_unicode(session: Session, dice: random.Random) -> None:
    session.execute(
        """update public."ТАБЛИЦА.x" set "значение" = %s::jsonb where "Ключ" = md5(%s)::uuid""",
        [dice.choice(["null", '{"a": [1, 2.50]}', '"\\u00e9"']), str(dice.randrange(1, 101))],
    )


def invoice(session: Session, dice: random.Random) -> None:
    session.execute(
        "insert into public.invoices (net, rate, note) values (%s, %s, %s)",
        [round(dice.uniform(0, 1e6), 2), dice.randrange(101), dice.choice([None, "note"])],
    )
    session.execute("update public.invoices set net = net + 1 where id between %s and %s", _span(dice, 400, 5))
    session.execute("delete from public.invoices where id = %s", [dice.randrange(400)])


def collect(session: Session, dice: random.Random) -> None:
    session.execute(
        """update public.collection set mood = %s, real_number = %s, any_number = %s, matrix = %s::int[], raw = %s,
               during = 'empty', day = %s::date, doc = %s::json
           where id between %s and %s""",
        [
            dice.choice(["sad", 'so "so"', None]),
            dice.choice([float("inf"), -0.0, 1e-300, dice.random()]),
            dice.choice(["NaN", "Infinity", "1.500", "-0"]),
            dice.choice(["{}", "{{1,NULL}}", None]),
            dice.choice([b"", b"\x00\\", None]),
            dice.choice(["-infinity", "0044-03-15 BC", "2024-02-29"]),
            dice.choice(["null", "[1,  2]"]),
            *_span(dice, 200, 4),
        ],
    )


def reissue_ticket(session: Session, dice: random.Random) -> None:
    session.execute(
        "update public.tickets set code = %s, holder = %s where code = %s",
        [f"T{dice.randrange(500)}", str(dice.random()), f"T{dice.randrange(500)}"],
    )
    session.execute("delete from public.tickets where code = %s", [f"T{dice.randrange(500)}"])
    session.execute("insert into public.tickets values (%s, null, 1)", [f"T{dice.randrange(500)}"])


def log_line(session: Session, dice: random.Random) -> None:
    session.execute("insert into public.logbook (line) values (%s)", [f"line {dice.randrange(20)}"])


def change_parts(session: Session, dice: random.Random) -> None:
    session.execute("update inventory.parts set secret = 'x' where id between %s and %s", _span(dice, 300, 5))
    session.execute("update inventory.parts set name = %s where id = %s", [str(dice.random()), dice.randrange(300)])


def change_stock(session: Session, dice: random.Random) -> None:
    """Rows come under the filter, and leave it."""
    session.execute(
        "update inventory.stock set region = %s, amount = amount + 1 where id between %s and %s",
        [dice.choice(["eu", "us", "jp"]), *_span(dice, 300, 4)],
    )
    session.execute("delete from inventory.stock where id = %s", [dice.randrange(300)])
    session.execute("insert into inventory.stock values (%s, 'eu', 0)", [dice.randrange(300)])


def much_at_once(session: Session, dice: random.Random) -> None:
    """A transaction larger than what is gathered in one breath."""
    start = dice.randrange(10**9, 2 * 10**9)
    session.execute(
        "insert into public.clicks select n, 0, 1.5, repeat('m', 100), null, null from generate_series(%s, %s) n",
        [start, start + 3000],
    )
    session.execute("update public.clicks set kind = 1 where id between %s and %s", [start, start + 1500])
    session.execute("delete from public.clicks where id between %s and %s", [start + 1000, start + 2500])


def truncate(session: Session, dice: random.Random) -> None:
    """Mostly the tables are filled again in the same transaction."""
    names = dice.choice(_TRUNCATED)
    session.execute(f"truncate {', '.join(parse_table(name).sql for name in names)} cascade".encode())
    if dice.random() < 0.8:
        for table in SHOP:
            if table.name in names:
                session.execute(table.fill.encode())


_TRUNCATED = (
    ("public.empty_at_first",), ("public.sightings",), ("public.measures",), ("public.seats",), ("public.logbook",),
    ("public.select",), ("inventory.stock", "public.tickets"), ("public.orders",),
    ("public.customers", "public.orders"),
)  # fmt: skip

DEEDS: tuple[tuple[Deed, float], ...] = (
    (click, 6), (revise_clicks, 5), (drop_clicks, 3), (register_customer, 6), (place_orders, 5),
    (renumber_customer, 3), (lose_customers, 2), (transfer, 10), (fill_empty, 2), (measure, 4), (move_measures, 3),
    (drop_measures, 2), (sight, 3), (reconsider_sighting, 3), (forget_sightings, 2), (retitle_document, 3),
    (renumber_document, 2), (rewrite_document, 1), (move_seat, 4), (swap_seats, 4), (shift_row, 2),
    (replace_guest, 3), (rename_weird, 3), (change_keyword, 3), (change_unicode, 3), (invoice, 4), (collect, 3),
    (reissue_ticket, 3), (log_line, 3), (change_parts, 3), (change_stock, 3), (much_at_once, 1), (truncate, 0.5),
)  # fmt: skip


def _span(dice: random.Random, top: int, length: int) -> tuple[int, int]:
    start = dice.randrange(1, top + 1)
    return start, start + dice.randrange(length)


# -- writers ----------------------------------------------------------------------------------------------------------


class Trade(Load):
    """The writers, at work while entered. `outcomes` is how many of each outcome there were."""

    def __init__(self, source: Database, seed: int, per_second: float = 25.0) -> None:
        super().__init__(source.uri, _transact, per_second=per_second, seed=seed, writers=_WRITERS)


def _transact(session: Session, dice: random.Random) -> str:
    session.execute("set lock_timeout = '2s'; set deadlock_timeout = '100ms'")
    try:
        _act(session, dice)
    except _SETTLED_BY_RETRY as error:
        session.rollback()
        return type(error).__name__
    if dice.random() < 0.15:
        session.rollback()
        return "rolled back"
    session.commit()
    return COMMITTED


def _act(session: Session, dice: random.Random) -> None:
    """Some deeds; now and then one in a subtransaction, which may be taken back on its own."""
    for deed in dice.choices([deed for deed, _ in DEEDS], [weight for _, weight in DEEDS], k=dice.randrange(1, 7)):
        if dice.random() < 0.15:
            _attempt(session, dice, deed)
        else:
            deed(session, dice)
        if dice.random() < 0.1:
            time.sleep(dice.uniform(0, 0.1))


def _attempt(session: Session, dice: random.Random, deed: Deed) -> None:
    with session.transaction():
        deed(session, dice)
        if dice.random() < 0.5:
            raise psycopg.Rollback


# -- the small shop ---------------------------------------------------------------------------------------------------


class Changes(Load):
    """One writer that never rests."""

    def __init__(self, source: Database) -> None:
        super().__init__(source.uri, self._change, per_second=50.0)

    def _change(self, session: Session, _dice: random.Random) -> str:
        number = self.transactions + 1
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
        return COMMITTED


_DELETE_NOTE = "delete from public.notes where ctid = (select ctid from public.notes where n = %s limit 1)"


class Truncates(Load):
    """Empties a table again and again, and fills it a little: by turns in one transaction, and in two."""

    def __init__(self, source: Database, table: str, seconds: float = 0.1) -> None:
        self._statements = (f"truncate {table} restart identity", f"insert into {table} values (%s, 'once more')")
        super().__init__(source.uri, self._truncate, per_second=1 / seconds)

    def _truncate(self, session: Session, _dice: random.Random) -> str:
        truncate, insert = self._statements
        session.execute(truncate.encode())
        if self.transactions % 2:
            session.commit()
        session.execute(insert.encode(), [self.transactions])
        session.commit()
        return COMMITTED
