"""Whose a pipeline is, as the store has it."""

from __future__ import annotations

from airflow_provider_pgetl.engine.state.store import Store
from tests.engine.state.conftest import World


def test_a_new_pipeline_belongs_to_nobody(store: Store) -> None:
    assert store.pipeline().owner is None


def test_an_owner_is_seen_by_others(store: Store, world: World) -> None:
    assert store.set_owner("sales/replication", instead_of=None)
    assert store.pipeline().owner == "sales/replication"
    assert world.open().pipeline().owner == "sales/replication"


def test_of_two_who_claim_it_at_once_the_second_does_not_get_it(store: Store, world: World) -> None:
    other = world.open()
    assert store.set_owner("sales", instead_of=None)
    assert not other.set_owner("stock", instead_of=None)
    other.load()
    assert other.pipeline().owner == "sales"
    assert other.set_owner("stock", instead_of="sales")
    store.load()
    assert store.pipeline().owner == "stock"


def test_it_may_be_let_go_of(store: Store) -> None:
    store.set_owner("sales", instead_of=None)
    assert store.set_owner(None, instead_of="sales")
    assert store.pipeline().owner is None
