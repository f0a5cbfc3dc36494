"""Tables verified by a person, while everything is written to: what is planted is found, and nothing else."""

import json
from typing import Any

import pytest

from tests.failures.pipeline import PipelineUnderTest, Said

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


def test_while_it_is_streamed(shop: PipelineUnderTest) -> None:
    with shop.follow() as run:
        shop.change_something()
        assert {table["verdict"] for table in verified(shop).values()} == {"equal"}
        run.stop().assert_well()


def test_a_lake(shop: PipelineUnderTest) -> None:
    shop.place = f'type = "delta"\nuri = "{shop.folder}/lake"'
    shop.destination_options = ""
    shop.catch_up().assert_well()
    assert {table["verdict"] for table in verified(shop).values()} == {"equal"}
