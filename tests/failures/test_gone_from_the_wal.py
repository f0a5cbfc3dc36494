"""Tables whose changes are not sent for a while, by means that leave little trace: unlogged, and whole schemas that are
taken out of a publication."""

import pytest

from tests.failures.pipeline import PipelineUnderTest

pytestmark = pytest.mark.servers

PARTS = """
    create table parts (id int primary key, note text) partition by range (id);
    create table parts_1 partition of parts for values from (0) to (1000);
    insert into parts select n, 'as it was' from generate_series(1, 5) n
"""


def assert_errored_until_copied_again(shop: PipelineUnderTest, table: str) -> None:
    said = shop.catch_up()
    assert shop.phases()[f"public.{table}"] == "Errored", said
    shop.pgetl("reset", f"public.{table}").assert_well()
    shop.catch_up().assert_well()
    statement = f"select id, note from {table} order by id"
    assert shop.destination.execute(statement) == shop.source.execute(statement)


def test_a_partition_that_was_unlogged_when_a_run_was_refused_for_it(shop: PipelineUnderTest) -> None:
    shop.source.execute(PARTS)
    shop.declared = ("public.orders", "public.parts")
    shop.catch_up().assert_well()
    shop.source.execute("alter table parts_1 set unlogged")
    shop.source.execute("update parts set note = 'in no WAL' where id = 1")
    assert "Make it a logged table" in shop.catch_up().complaint
    shop.source.execute("alter table parts_1 set logged")
    assert_errored_until_copied_again(shop, "parts")


def test_a_table_of_a_publication_of_all_that_was_unlogged_when_a_run_was_refused_for_it(
    shop: PipelineUnderTest,
) -> None:
    shop.source.execute("create publication mine for all tables")
    shop.source_options = 'publication = "mine"\nmanage_publication = false'
    shop.catch_up().assert_well()
    shop.source.execute("alter table orders set unlogged")
    shop.source.execute("update orders set note = 'in no WAL' where id = 1")
    assert "unlogged" in shop.catch_up().complaint
    shop.source.execute("alter table orders set logged")
    assert_errored_until_copied_again(shop, "orders")


def test_a_table_that_was_in_a_schema_that_is_not_published_for_a_while(shop: PipelineUnderTest) -> None:
    shop.source.execute("create publication mine for tables in schema public")
    shop.source_options = 'publication = "mine"\nmanage_publication = false'
    shop.catch_up().assert_well()
    shop.source.execute("create schema away")
    shop.source.execute("alter table orders set schema away")
    shop.source.execute("update away.orders set note = 'not sent' where id = 1")
    shop.source.execute("alter table away.orders set schema public")
    said = shop.catch_up().complaint
    assert "Changes may be missing" in said
    assert "public.items" not in said
    shop.pgetl("reset", "public.orders").assert_well()
    shop.catch_up().assert_well()
    shop.assert_nothing_lost()


def test_a_schema_that_was_taken_out_of_its_publication_and_put_back(shop: PipelineUnderTest) -> None:
    shop.source.execute("create publication mine for tables in schema public")
    shop.source_options = 'publication = "mine"\nmanage_publication = false'
    shop.catch_up().assert_well()
    shop.source.execute("alter publication mine drop tables in schema public")
    shop.source.execute("update orders set note = 'not sent' where id = 1")
    shop.source.execute("alter publication mine add tables in schema public")
    assert "Changes may be missing" in shop.catch_up().complaint
    shop.source_options += '\non_slot_lost = "resync"'
    shop.catch_up().assert_well()
    shop.assert_nothing_lost()
