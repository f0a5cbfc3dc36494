"""Schema versions valid from a boundary on, and what the destination was told."""

import pytest

from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.store import DestinationMetadata, Store
from tests.engine.state.conftest import World
from tests.engine.state.samples import ORDERS, schema_of

FIRST = schema_of(ORDERS, "id")
SECOND = schema_of(ORDERS, "id", "total")
THIRD = schema_of(ORDERS, "id", "total", "mood")


@pytest.fixture
def versioned(store: Store) -> Store:
    for lsn, schema in ((100, FIRST), (300, THIRD), (200, SECOND)):
        store.store_schema(ORDERS, Boundary(lsn), schema)
    return store


def test_the_newest_version_at_or_before_a_boundary(versioned: Store, world: World) -> None:
    for store in (versioned, world.open()):
        found = [store.schema(ORDERS, Boundary(at)) for at in (99, 100, 199, 200, 300, 2**63)]
        assert found == [None, FIRST, FIRST, SECOND, THIRD, THIRD]


def test_an_unknown_table_has_no_schema(store: Store) -> None:
    assert store.schema(ORDERS, Boundary(5)) is None
    assert store.schemas() == {}


def test_a_version_stored_again_is_replaced(versioned: Store, world: World) -> None:
    versioned.store_schema(ORDERS, Boundary(200), FIRST)
    for store in (versioned, world.open()):
        assert store.schemas()[ORDERS] == {Boundary(100): FIRST, Boundary(200): FIRST, Boundary(300): THIRD}


def test_destination_metadata(store: Store, world: World) -> None:
    told = DestinationMetadata(TableName("lake", "orders"), Boundary(7), True, {"version": 3, "path": ["a", None]})
    assert store.destination_metadata(ORDERS) is None
    store.store_places({ORDERS: told})
    for seen in (store, world.open()):
        assert seen.destination_metadata(ORDERS) == told


def test_metadata_of_a_schema_not_yet_applied(store: Store, world: World) -> None:
    store.store_places({ORDERS: DestinationMetadata(ORDERS, Boundary(7))})
    store.store_places({ORDERS: DestinationMetadata(ORDERS, Boundary(8), applied=False)})
    for seen in (store, world.open()):
        metadata = seen.destination_metadata(ORDERS)
        assert metadata is not None
        assert (metadata.snapshot, metadata.applied) == (Boundary(8), False)


def test_details_come_back_as_json_gives_them(store: Store, world: World) -> None:
    store.store_places({ORDERS: DestinationMetadata(ORDERS, START, details={"columns": ("a", "b")})})
    for seen in (store, world.open()):
        metadata = seen.destination_metadata(ORDERS)
        assert metadata is not None
        assert metadata.details == {"columns": ["a", "b"]}


def test_old_versions_are_forgotten_and_the_times_of_the_others_stay(versioned: Store, world: World) -> None:
    before = versioned.schemas_recorded(ORDERS)
    assert all(at is not None for at in before.values())
    versioned.store_schema(ORDERS, Boundary(300), FIRST)
    versioned.forget_schemas(ORDERS, [Boundary(100), Boundary(200)])
    for store in (versioned, world.open()):
        assert store.schemas()[ORDERS] == {Boundary(300): FIRST}
        assert store.schemas_recorded(ORDERS) == {Boundary(300): before[Boundary(300)]}
