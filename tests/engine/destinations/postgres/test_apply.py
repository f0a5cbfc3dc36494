"""Whatever a source does to a table, the destination's table comes out equal: by single statements and in bulk,
from text and from binary, with a key and without."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.changes.batch import Step
from airflow_provider_pgetl.engine.destinations.postgres import PostgresDestination, apply
from airflow_provider_pgetl.engine.destinations.protocol import Misses
from airflow_provider_pgetl.engine.model.errors import Fenced
from airflow_provider_pgetl.testing.builders import Replica
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.engine.destinations.sources import Row, Source, schema_of

IDENTITIES = {
    "key": (("k",), "default"),
    "key of two": (("K two", "k"), "index"),
    "key, whole rows sent": (("k", "K two"), "full"),
    "no key": ((), "full"),
}
PATHS = {"single": 10_000, "bulk": -1, "mixed": 3}


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "AT_MOST", request.param)


@pytest.fixture
def destination(databases: Databases) -> Iterator[PostgresDestination]:
    opened = PostgresDestination(databases.destination.uri, "shop", "apply")
    yield opened
    opened.shutdown()


def held(database: Database, name: str) -> Counter[Row]:
    return Counter(database.execute(f'select k, "K two", number, small, big from public.{name}'))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("source_server", [18], indirect=True)
@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES.keys())
@pytest.mark.parametrize("kind", [b"t", b"b"], ids=["text", "binary"])
def test_any_sequence_of_changes(
    databases: Databases, destination: PostgresDestination, identity: tuple[tuple[str, ...], str], kind: bytes
) -> None:
    numbers = iter(range(1_000_000))

    # A failing seed says all: shrinking it would only cost minutes.
    @given(st.integers(0, 1 << 32), st.sampled_from([(4, 0.1), (200, 0.01)]), st.integers(1, 100))
    @settings(max_examples=6, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    def run(seed: int, keys_and_cuts: tuple[int, float], changes: int) -> None:
        keys, cuts = keys_and_cuts
        schema = schema_of(*identity, name=f"t{next(numbers)}")
        source = Source(schema, random.Random(seed), kind, keys)
        replica = Replica(destination, schema, pipeline="shop").create()
        for _ in range(3):
            replica.apply(*source.live(changes, cuts=cuts))
            assert held(databases.destination, schema.table.name) == source.held
        assert schema.table not in destination.misses()

    run()


def test_a_batch_holds_many_tables(databases: Databases, destination: PostgresDestination) -> None:
    sources = [Source(schema_of(("k",), name=f"t{at}"), random.Random(at), b"b") for at in range(6)]
    replicas = [Replica(destination, source.schema, pipeline="shop").create() for source in sources]
    steps: list[Step] = []
    for source in sources:
        steps += source.live(200, cuts=0.02)
    moves = {r.schema.table: r.batch().moves[r.schema.table] for r in replicas}
    destination.write_events(replace(replicas[0].batch(*steps), moves=moves))
    for source in sources:
        assert held(databases.destination, source.schema.table.name) == source.held


@pytest.mark.usefixtures("path")
def test_what_finds_no_row_is_counted_of_committed_batches_only(
    databases: Databases, destination: PostgresDestination
) -> None:
    schema = schema_of(("k",))
    replica = Replica(destination, schema, pipeline="shop").create()
    ghost = (b"1", b"a", None, None, None)
    replica.apply(replica.wire().update(ghost).take())
    replica.apply(replica.wire().delete(ghost).take())
    assert destination.misses() == {schema.table: Misses(1, 1)}
    with pytest.raises(Fenced):
        destination.write_events(replace(replica.batch(replica.wire().delete(ghost).take()), epoch=7))
    assert destination.misses() == {schema.table: Misses(1, 1)}
