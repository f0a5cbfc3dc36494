"""Which pipelines a state database has, by which slots at their sources are told from what is left over there."""

from __future__ import annotations

from airflow_provider_pgetl.engine.state.store import Store
from tests.engine.state.conftest import World


def test_every_pipeline_that_is_stored_is_known_by_its_instance(store: Store, world: World) -> None:
    own, other = store.pipeline(), world.open(f"{world.pipeline_id}_eu")
    assert store.instances().items() >= {(own.id, own.instance), (other.pipeline().id, other.pipeline().instance)}
    other.destroy()
    assert f"{world.pipeline_id}_eu" not in store.instances()
