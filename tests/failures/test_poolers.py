"""A connection pooler between the pipeline and one of its servers."""

from collections.abc import Iterator

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Server
from tests.failures.pipeline import PipelineUnderTest
from tests.pooler import Pooler

pytestmark = pytest.mark.servers

_LOST = "is a connection pooler that gives every transaction another session"


@pytest.fixture
def pooler(server16: Server) -> Iterator[Pooler]:
    with Pooler(server16) as pooler:
        yield pooler


@pytest.mark.parametrize("variable", ["SOURCE", "DESTINATION", "STATE"])
def test_a_server_behind_transaction_pooling_is_refused_before_anything_is_done(
    shop: PipelineUnderTest, pooler: Pooler, variable: str
) -> None:
    """What sessions hold would be lost between transactions, or be met by others: so none of ours is pinned."""
    place = {"SOURCE": shop.source, "DESTINATION": shop.destination, "STATE": shop.state}[variable]
    shop.environment[f"PGETL_{variable}_URI"] = pooler.uri(place.name)
    said = shop.catch_up()
    assert said.code == 3, said
    assert f"postgres@127.0.0.1:{pooler.port}/{place.name} {_LOST}" in said.complaint
    said = shop.pgetl("check")
    assert said.code == 3
    assert _LOST in said.out + said.err
    assert (shop.slots(), shop.publications()) == ([], [])
    with Server.connect(shop.source.server, place.name) as session:
        assert session.execute("select 1 from pg_namespace where nspname = 'pgetl'").fetchall() == []


@pytest.mark.slow
def test_a_pooler_that_keeps_sessions_serves_destination_and_state_but_not_the_source(
    shop: PipelineUnderTest, server16: Server
) -> None:
    with Pooler(server16, keeps_sessions=True) as pooler:
        shop.environment["PGETL_DESTINATION_URI"] = pooler.uri(shop.destination.name)
        shop.environment["PGETL_STATE_URI"] = pooler.uri(shop.state.name)
        shop.assert_nothing_lost()
        shop.environment["PGETL_SOURCE_URI"] = pooler.uri(shop.source.name)
        for said in (shop.catch_up(), shop.pgetl("check")):
            assert said.code == 3, said
            assert "unsupported startup parameter: replication" in said.out + said.err
            assert "Name the server's own address in the source's URI" in said.out + said.err
    shop.environment.clear()
    shop.assert_nothing_lost()
