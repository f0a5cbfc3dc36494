"""Columns that are dropped in the destination as well, where that is declared."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.failures.pipeline import PipelineUnderTest
from tests.failures.test_added_columns import reasons, verified
from tests.shop import ShopTable

pytestmark = pytest.mark.servers

CREATE = """create table public.{0} (id int primary key, a int not null, b text not null);
            insert into public.{0} select n, n, 'b' from generate_series(1, 50) n"""
DROPPED, KEPT = (ShopTable(f"public.{name}", CREATE.format(name)) for name in ("dropped", "kept"))
COLUMNS = """select string_agg(attname, ' ' order by attname) from pg_attribute
             where attrelid = %s::regclass and attnum > 0 and not attisdropped"""


@pytest.fixture
def tables(databases: Databases, state_database: Database, tmp_path: Path) -> Iterator[PipelineUnderTest]:
    pipeline = PipelineUnderTest(databases, state_database, tmp_path, "shop", (DROPPED, KEPT), ("public.kept",))
    pipeline.environment["TEST_WATCH_SECONDS"] = "1"
    pipeline.more = '[[table]]\nname = "public.dropped"\non_drop = "drop"\n'
    for one in pipeline.tables:
        databases.source.execute(one.create)
    yield pipeline
    pipeline.close()


def alter(pipeline: PipelineUnderTest, change: str) -> None:
    for one in pipeline.tables:
        name = one.table.name
        pipeline.source.execute(
            f"update {name} set a = a + 1; alter table {name} {change}; update {name} set a = a + 1"
        )


def columns(pipeline: PipelineUnderTest, name: str) -> str:
    if "delta" in pipeline.place:
        fields = DeltaTable(pipeline.folder / "lake" / "public" / name).schema().fields
        return " ".join(sorted(field.name for field in fields))
    ((found,),) = pipeline.destination.execute(COLUMNS, [name])
    return str(found)


@pytest.mark.parametrize("place", [pytest.param("postgres", marks=pytest.mark.slow), "delta"])
def test_a_column_is_dropped_and_its_name_is_free(tables: PipelineUnderTest, place: str) -> None:
    if place == "delta":
        tables.place = f'type = "delta"\nuri = "{tables.folder}/lake"'
        tables.more += '[stream]\nmin_interval = "200ms"'
    with tables.follow() as run:
        alter(tables, "drop b")
        run.until(lambda: columns(tables, "dropped") == "a id" and verified(tables), "it is dropped")
        assert columns(tables, "kept") == "a b id"
        alter(tables, "add b text not null default 'again'")
        run.until(lambda: reasons(tables) and verified(tables, "public.dropped"), "one has it again")
        assert reasons(tables).keys() == {"public.kept"}
        assert "b was dropped and added again" in reasons(tables)["public.kept"]
        tables.pgetl("reset", "public.kept").assert_well()
        run.until(lambda: not reasons(tables) and verified(tables), "and the other, by a new copy")
        run.stop()
    assert [tables.copies(one.name) for one in tables.tables] == [1, 2]
    assert columns(tables, "dropped") == columns(tables, "kept") == "a b id"


def test_it_dies_before_and_after_a_column_is_dropped(tables: PipelineUnderTest) -> None:
    tables.catch_up().assert_well()
    steps = (("schema.changing", "drop b"), ("schema.changed", "add c int"), ("apply.write", "add d int"))
    for failpoint, change in steps:
        alter(tables, change)
        tables.environment["PGETL_FAILPOINT"] = failpoint
        assert tables.catch_up().code == -signal.SIGKILL
    del tables.environment["PGETL_FAILPOINT"]
    tables.catch_up().assert_well()
    alter(tables, "drop c")
    tables.catch_up().assert_well()
    assert (columns(tables, "dropped"), columns(tables, "kept")) == ("a d id", "a b c d id")
    assert verified(tables)
    assert [tables.copies(one.name) for one in tables.tables] == [1, 1]
