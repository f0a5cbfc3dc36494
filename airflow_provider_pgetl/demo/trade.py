"""The load on the shop: customers order, pay, return; prices and stock change; now and then somebody does it in bulk.

Each deed is one transaction over several tables. The load may be paused, and everything that it has begun is then
committed; it survives a restart of the server. A load that breaks otherwise says so: `check`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psycopg

Session = psycopg.Connection
Deed = Callable[[Session, random.Random], None]

_OUTAGE_PAUSE = 0.5


def _order(session: Session, dice: random.Random) -> None:
    order = """insert into orders (customer_id, note)
               select id, %s from customers where id >= %s order by id limit 1 returning id"""
    row = session.execute(order, [dice.choice([None, "gift", "schnell, bitte"]), dice.randrange(1, 1000)]).fetchone()
    if row is None:
        return
    for line in range(1, dice.randrange(2, 6)):
        product, quantity = dice.randrange(1, 2001), dice.randrange(1, 4)
        session.execute(
            "insert into order_lines select %s, %s, id, %s, price from products where id = %s",
            [row[0], line, quantity, product],
        )
        session.execute(
            "update inventory set quantity = quantity - %s where product_id = %s and warehouse = 'Berlin'",
            [quantity, product],
        )


def _pay(session: Session, dice: random.Random) -> None:
    session.execute(
        """with paid as (
               update orders set status = 'paid'
               where id in (select id from orders where status = 'placed' order by id desc limit %s) returning id)
           insert into payments (order_id, amount, method)
           select id, coalesce((select sum(quantity * price) from order_lines where order_id = id), 0), 'card'
           from paid""",
        [dice.randrange(1, 4)],
    )


def _cancel(session: Session, dice: random.Random) -> None:
    session.execute("delete from orders where id in (select max(id) - %s from orders)", [dice.randrange(1, 500)])


def _sign_up(session: Session, dice: random.Random) -> None:
    session.execute(
        "insert into customers (name, email, country) values (%s, %s, 'NL') on conflict do nothing",
        [f"Żółć {dice.random()}", f"{dice.random()}@example.net"],
    )


def _reprice(session: Session, dice: random.Random) -> None:
    session.execute(
        """update products set price = round(price * %s::numeric, 2), attributes = attributes || '{"repriced": true}'
           where id between %s and %s""",
        [dice.choice([1, 2]) / 2 + 0.25, (first := dice.randrange(1, 1990)), first + 9],
    )


def _restock(session: Session, dice: random.Random) -> None:
    session.execute("update inventory set quantity = quantity + 50 where product_id %% 20 = %s", [dice.randrange(20)])


_DEEDS: tuple[tuple[Deed, int], ...] = (
    (_order, 50),
    (_pay, 20),
    (_cancel, 8),
    (_sign_up, 12),
    (_reprice, 5),
    (_restock, 1),
)


class Trade:
    """The load, while entered."""

    def __init__(self, uri: str, per_second: float = 40.0, seed: int = 1) -> None:
        self.transactions = 0
        self._uri = uri
        self._pause_seconds = 1 / per_second
        self._dice = random.Random(seed)
        self._broken: Exception | None = None
        self._over = threading.Event()
        self._open = threading.Event()
        self._at_work = threading.Lock()
        self._thread = threading.Thread(target=self._trade, name="trade", daemon=True)

    def __enter__(self) -> Self:
        self.resume()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._open.set()
        self._thread.join()

    def pause(self) -> None:
        """Nothing is under way any more when this returns."""
        self._open.clear()
        with self._at_work:
            return

    def resume(self) -> None:
        self._open.set()

    @property
    def paused(self) -> bool:
        return not self._open.is_set()

    def check(self) -> None:
        """Raise what the load broke with, if it did."""
        if self._broken is not None:
            raise self._broken

    def _trade(self) -> None:
        try:
            self._trade_on()
        except psycopg.Error as error:
            self._broken = error

    def _trade_on(self) -> None:
        while not self._over.is_set():
            try:
                with psycopg.connect(self._uri) as session:
                    self._in(session)
            except psycopg.OperationalError:
                self._over.wait(_OUTAGE_PAUSE)  # the server is being restarted

    def _in(self, session: Session) -> None:
        while not self._over.wait(self._dice.uniform(0, 2 * self._pause_seconds)):
            self._open.wait()
            with self._at_work:
                if self._open.is_set() and not self._over.is_set():
                    self._transact(session)

    def _transact(self, session: Session) -> None:
        deeds, weights = zip(*_DEEDS, strict=True)
        try:
            (deed,) = self._dice.choices(deeds, weights)
            deed(session, self._dice)
            session.commit()
            self.transactions += 1
        except (psycopg.errors.DeadlockDetected, psycopg.errors.IntegrityError):
            session.rollback()
