"""Tables that are altered at the source in a way that cannot be carried over, and are copied again by themselves."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.comparing import differences
from tests.failures.pipeline import PipelineUnderTest
from tests.failures.test_added_columns import reasons, verified
from tests.shop import ShopTable

pytestmark = pytest.mark.servers


def table(name: str) -> ShopTable:
    create = f"""create table public.{name} (id int primary key, n int, note text);
                 insert into public.{name} select n, n, 'note' from generate_series(1, 50) n"""
    return ShopTable(f"public.{name}", create)


ALTERED, QUIET, BY_HAND, OTHER = EVERY = tuple(map(table, ("altered", "quiet", "by_hand", "other")))
INCOMPATIBLE = "alter table {} alter n type bigint using n * 2 + 1"


@pytest.fixture
def tables(databases: Databases, state_database: Database, tmp_path: Path) -> Iterator[PipelineUnderTest]:
    pipeline = PipelineUnderTest(databases, state_database, tmp_path, "shop", EVERY, ("public.by_hand",))
    pipeline.environment["TEST_WATCH_SECONDS"] = "1"
    pipeline.more = "".join(
        f'[[table]]\nname = "{one.name}"\nresync = "on_incompatible_change"\n' for one in (ALTERED, QUIET, OTHER)
    )
    for one in EVERY:
        databases.source.execute(one.create)
    yield pipeline
    pipeline.close()


@pytest.mark.parametrize("place", [pytest.param("postgres", marks=pytest.mark.slow), "delta"])
def test_a_table_is_copied_again_by_itself_once_an_hour(tables: PipelineUnderTest, place: str) -> None:
    """Found by its next row, or, where none comes, by a look at the catalog. Another table waits for a person."""
    if place == "delta":
        tables.place = f'type = "delta"\nuri = "{tables.folder}/lake"'
    with tables.follow() as run:
        for one in (ALTERED, QUIET, BY_HAND):
            tables.source.execute(INCOMPATIBLE.format(one.name))
        tables.source.execute("insert into altered values (60, 60, 'new'); update other set n = n + 1")
        run.until(lambda: reasons(tables).keys() == {"public.by_hand"}, "one waits for a person")
        run.until(lambda: tables.copies("public.altered") == tables.copies("public.quiet") == 2, "copied again")
        run.until(lambda: list(tables.phases().values()).count("Ready") == 3, "they are Ready again")
        tables.source.execute("update altered set note = 'after'; update quiet set note = 'after'")
        tables.source.execute(INCOMPATIBLE.format("altered"))
        tables.source.execute("update altered set n = 7 where id = 7")
        run.until(lambda: "public.altered" in reasons(tables), "it is not copied again within the hour")
        tables.pgetl("reset", "public.by_hand").assert_well()
        tables.pgetl("reset", "public.altered").assert_well()
        run.until(lambda: not reasons(tables) and verified(tables), "a person has it copied")
        run.stop()
    assert [tables.copies(one.name) for one in EVERY] == [3, 2, 2, 1]
    assert "It was Ready for " in "".join(solutions(tables))
    if place == "postgres":
        tables.assert_equal()


def solutions(pipeline: PipelineUnderTest) -> list[str]:
    rows = pipeline.state.execute("select phase ->> 'solution' from pgetl.history where phase ->> 'phase' = 'Errored'")
    return [str(text) for (text,) in rows]


def test_the_old_rows_are_read_until_the_copy_is_there_and_a_bounded_run_waits_for_it(
    tables: PipelineUnderTest,
) -> None:
    tables.catch_up().assert_well()
    tables.source.execute(INCOMPATIBLE.format("altered"))
    tables.source.execute("insert into altered values (60, 60, 'new')")
    tables.environment["PGETL_FAILPOINT"] = "copy.publishing"
    before = tables.destination.execute("select * from altered order by id")
    assert tables.catch_up().code == -signal.SIGKILL
    assert tables.destination.execute("select * from altered order by id") == before
    del tables.environment["PGETL_FAILPOINT"]
    said = tables.catch_up()
    said.assert_well()
    assert "public.altered" not in reasons(tables)
    assert not differences(tables.databases, EVERY)
    assert [tables.copies(one.name) for one in (QUIET, BY_HAND, OTHER)] == [1, 1, 1]
