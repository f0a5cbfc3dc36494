"""What runs have announced of tables."""

from __future__ import annotations

from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.store import Store
from tests.engine.state.conftest import World

ORDERS, NOTES = TableName("public", "orders"), TableName("public", "notes")


def test_what_a_run_has_announced_is_known_to_others_and_not_to_itself(store: Store, world: World) -> None:
    assert store.announced("shop/1") == {}
    store.record_announced("shop/1", {ORDERS: "1/0/A", NOTES: "1/0/B"})
    store.record_announced("shop/1", {})
    assert world.open().announced("shop/2") == {ORDERS: "1/0/A", NOTES: "1/0/B"}
    assert store.announced("shop/1") == {}
    store.record_announced("shop/2", {ORDERS: "1/0/C"})
    assert store.announced("shop/2") == {NOTES: "1/0/B"}
    assert store.announced("shop/3") == {ORDERS: "1/0/C", NOTES: "1/0/B"}
