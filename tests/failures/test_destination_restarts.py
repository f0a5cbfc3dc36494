"""The destination is restarted under load: no table is Errored for it, and all become equal."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases, Server
from tests.failures.pipeline import PipelineUnderTest

pytestmark = pytest.mark.servers


@pytest.fixture
def shop(server16: Server, own_server: Server, state_database: Database, tmp_path: Path) -> Iterator[PipelineUnderTest]:
    source = server16.create_database(f"source_of_{state_database.name}")
    databases = Databases(source, own_server.create_database("destination"))
    pipeline = PipelineUnderTest(databases, state_database, tmp_path)
    pipeline.fill()
    yield pipeline
    pipeline.close()
    server16.drop_database(source.name)


def test_a_table_that_a_crash_empties(shop: PipelineUnderTest, own_server: Server) -> None:
    """Somebody has made it unlogged; it is Errored before or after, and copied again it is whole."""
    with shop.follow() as running:
        shop.destination.execute("alter table items set unlogged")
        own_server.restart("immediate")
        assert shop.rows("items") == 0
        shop.change_something()
        running.until(lambda: shop.phases()["public.items"] == "Errored", "the table was Errored")
        running.until(shop.arrives("select 1 from orders where note = 'later'"), "the others go on")
        running.stop()
    assert "a crash of the server empties it" in shop.pgetl("status", "-v").out
    shop.destination.execute("alter table items set logged")
    shop.pgetl("reset", "public.items").assert_well()
    shop.assert_nothing_lost()


def test_between_and_during_large_batches(shop: PipelineUnderTest, own_server: Server) -> None:
    """Tables take in rows by way of temporary tables, which are gone with the server."""
    with shop.follow() as running:
        for number in range(4):
            shop.source.execute(f"update orders set amount = {number}, note = note || '.'")
            shop.source.execute(f"update items set what = what || '{number}'")
            own_server.restart("fast" if number % 2 else "immediate")
        shop.source.execute("insert into items values (999, 'last')")
        running.until(shop.arrives("select 1 from items where id = 999"), "all had arrived")
        assert set(shop.phases().values()) == {"Ready"}, running.said
        shop.assert_equal()
