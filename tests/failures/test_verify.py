"""Tables verified by a person, while everything is written to: what is planted is found, and nothing else."""

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from airflow_provider_pgetl.testing.load import COMMITTED, Load, Session
from tests.failures.pipeline import PipelineUnderTest, Said
from tests.waiting import until

pytestmark = pytest.mark.servers


def tables_of(said: Said) -> dict[str, dict[str, Any]]:
    said.assert_presentable()
    return {table["table"]: table for table in json.loads(said.out)["tables"]}


def verified(shop: PipelineUnderTest, *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    said = shop.pgetl("verify", "--json", *arguments)
    assert said.code == code, said
    return tables_of(said)


def test_what_is_equal_is_said_to_be_so(followed: PipelineUnderTest) -> None:
    slots = followed.slots()
    found = verified(followed)
    assert {name: (table["verdict"], table["rows"], table["skipped"]) for name, table in found.items()} == {
        "public.items": ("equal", 50, 0),
        "public.orders": ("equal", 500, 0),
    }
    said = followed.pgetl("verify")
    said.assert_well()
    assert "public.orders: equal up to 0/" in said.out
    assert "500 rows." in said.out
    assert followed.slots() == slots


def test_rows_that_differ_are_shown(followed: PipelineUnderTest) -> None:
    followed.destination.execute("delete from orders where id = 7")
    followed.destination.execute("insert into orders values (900, 'of nobody', 1)")
    followed.destination.execute("update orders set note = note || ' ' where id = 8")
    followed.destination.execute("update orders set amount = null where id = 9")
    found = verified(followed, code=4)
    assert found["public.items"]["verdict"] == "equal"
    orders = found["public.orders"]
    assert (orders["verdict"], orders["missing"], orders["extra"], orders["changed"]) == ("different", 1, 1, 2)
    shown = {(row["kind"], row["key"]["id"]): row["columns"] for row in orders["differences"]}
    assert shown == {
        ("missing", "7"): {},
        ("extra", "900"): {},
        ("changed", "8"): {"note": {"source": "'note 8'", "destination": "'note 8 '"}},
        ("changed", "9"): {"amount": {"source": "9", "destination": "NULL"}},
    }


def test_what_was_found_is_kept_with_its_evidence(followed: PipelineUnderTest) -> None:
    assert verified(followed, "--last", code=4)["public.orders"]["why"] == "it was never verified."
    followed.destination.execute("delete from orders where id = 7")
    followed.destination.execute("update orders set amount = null where id = 9")
    found = verified(followed, code=4)["public.orders"]
    assert verified(followed, "--last", code=4)["public.orders"] == found
    shown = {row["kind"]: row for row in found["differences"]}
    assert shown["missing"]["source"] == {"id": "7", "note": "'note 7'", "amount": "7"}
    assert shown["missing"]["destination"] is None
    assert shown["changed"]["source"] == {"id": "9", "note": "'note 9'", "amount": "9"}
    assert shown["changed"]["destination"] == {"id": "9", "note": "'note 9'", "amount": "NULL"}
    assert found["position"] == shown["missing"]["position"]
    assert shown["missing"]["destination_position"]
    status = followed.pgetl("status").out
    assert "public.orders: DIFFERENT (1 missing, 1 changed)" in status
    assert "--last` shows the rows" in status

    followed.destination.execute("insert into orders values (7, 'note 7', 7)")
    followed.destination.execute("update orders set amount = 9 where id = 9")
    verified(followed)
    assert "warning" not in followed.pgetl("status").out
    said = followed.pgetl("verify", "--last", "public.orders")
    said.assert_well()
    newest, _, before, *_ = said.out.splitlines()
    assert "public.orders: equal up to" in newest
    assert before == "Rows differed before:"
    assert "missing: id 7" in said.out
    assert followed.pgetl("verify", "--last", "--repair").code == 2


def test_a_repaired_table_is_equal_again(followed: PipelineUnderTest) -> None:
    followed.destination.execute("delete from orders where id = 7")
    said = followed.pgetl("verify", "--repair")
    assert (said.code, "public.orders is in Init: a run copies it again." in said.out) == (4, True)
    assert "DIFFERENT up to" not in followed.pgetl("status").out
    followed.catch_up().assert_well()
    verified(followed)


@pytest.mark.parametrize("source_server", [16, 18], indirect=True)
def test_nothing_stays_when_it_is_killed(followed: PipelineUnderTest) -> None:
    """While it waits for a writer, so that it has its snapshot; and while it reads rows."""
    slots = followed.slots()
    with followed.source.connect(autocommit=False) as writer:
        writer.execute("insert into orders values (9000, 'open', 1)")
        waiting = followed.start("verify")
        waiting.until(lambda: len(followed.slots()) > len(slots), "it had a slot")
        waiting.kill()
        writer.rollback()
    until(lambda: followed.slots() == slots, "the slot was gone", 30)
    reading = followed.start("verify", "--rate", "20")
    reading.until(lambda: _reads(followed), "it read rows")
    reading.kill()
    assert followed.slots() == slots
    until(lambda: not _reads(followed), "its sessions had ended", 30)
    followed.source.execute("set lock_timeout = '5s'; alter table orders add column later int")


def _reads(shop: PipelineUnderTest) -> bool:
    query = "select pid from pg_stat_activity where application_name like 'pgetl % verify' and backend_xmin is not null"
    return bool(shop.source.execute(query))


MINUTES = 4


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["postgres", "delta"])
def test_no_false_alarm_under_load_with_kills(shop: PipelineUnderTest, kind: str) -> None:
    """And what differs in earnest is found in the midst of it."""
    if kind == "delta":
        shop.place = f'type = "delta"\nuri = "{shop.folder}/lake"'
        shop.more = '[stream]\nmin_interval = "200ms"'
    shop.follow().kill()
    rounds, compared = 0, 0
    with Load(shop.source.uri, _change, per_second=10, writers=2), killed_again_and_again(shop):
        end = time.monotonic() + MINUTES * 60
        while time.monotonic() < end:
            said = shop.pgetl("verify", "--json")
            if said.code == 1:  # a server turned us away, which is no verdict
                said.assert_presentable()
                continue
            for table in tables_of(said).values():
                assert table["verdict"] != "different", said
                compared += table["verdict"] == "equal"
            rounds += 1
    assert rounds > 3
    assert compared > rounds
    shop.catch_up()
    assert {table["verdict"] for table in verified(shop).values()} == {"equal"}


def _change(session: Session, drawn: random.Random) -> str:
    """Keys that move, hot rows, transactions that stay open for a while, a truncate now and then."""
    for _ in range(drawn.randrange(1, 6)):
        first, moved = drawn.randrange(500), drawn.randrange(1000, 2500)
        statement = drawn.choice(
            [
                f"update orders set amount = amount + 1 where id between {first} and {first + 9}",
                "update orders set amount = amount + 1 where id = (select max(id) from orders)",
                f"delete from orders where id = {first}",
                f"insert into orders values ({first}, 'again', 0) on conflict do nothing",
                f"update orders set id = {moved} where id = {first} and {moved} not in (select id from orders)",
                f"insert into items values ({moved}, 'item') on conflict (id) do update set what = 'more'",
                "truncate items" if drawn.random() < 0.05 else "select 1",
            ]
        )
        try:
            session.execute(statement.encode())
        except psycopg.Error:  # two that wait for each other
            session.rollback()
    time.sleep(drawn.random() / 5)
    session.commit()
    return COMMITTED


@contextmanager
def killed_again_and_again(shop: PipelineUnderTest) -> Iterator[None]:
    """A run that is killed, is away for a while, and is started anew."""
    stop = threading.Event()

    def keep() -> None:
        drawn = random.Random(7)
        while not stop.is_set():
            with shop.start("run") as run:
                stop.wait(drawn.uniform(10, 30))
                run.kill()
            stop.wait(drawn.uniform(0, 10))

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield
    finally:
        stop.set()
        keeper.join()
