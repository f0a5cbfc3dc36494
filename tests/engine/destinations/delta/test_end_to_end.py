"""From Postgres into the lake, through the whole engine: a shop that is traded in, runs that are killed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.destinations.delta.log.storage import Lake
from airflow_provider_pgetl.engine.source.catalog import PublishedTable, read_tables
from airflow_provider_pgetl.engine.source.connecting import connect
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.comparing import Rows, hashable, lake_difference, tuples
from tests.engine.destinations.delta.reading import by_duckdb
from tests.engine.destinations.delta.test_any_changes import replayed
from tests.runs import Run, Runs
from tests.shop import SHOP, ShopTable, create_shop, pipeline_text
from tests.trade import Trade

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COPY = 'table_workers = 2\nrange_bytes = "256KiB"\ngroup_bytes = "2MiB"'
WAYS = {
    "upsert": 'mode = "upsert"',
    "history": 'mode = "history"',
    "landing": 'merge = "spark"',
    "merge_on_read": 'updates = "merge_on_read"',
}
Start = Callable[..., Runs]


@pytest.fixture
def start(databases: Databases, tmp_path: Path) -> Iterator[Start]:
    made: list[Runs] = []

    def runs(way: str = "upsert", stream: str = 'min_interval = "300ms"') -> Runs:
        create_shop(databases.source, 5_000)
        text = pipeline_text(copy=COPY, stream=stream)
        own = f'type = "delta"\nuri = "{tmp_path}/lake"\n{WAYS[way]}\nout_of_range = "text"\n'
        text = text.replace('type = "postgres"\nuri = "env:PGETL_DESTINATION_URI"', own)
        made.append(Runs(databases, tmp_path, text))
        return made[-1]

    yield runs
    for one in made:
        one.close()


def assert_equal(databases: Databases, lake: Path, tables: tuple[ShopTable, ...] = SHOP) -> None:
    """Each table of the source, as its columns are held in the lake, and what readers find there."""
    with closing(connect(databases.source.uri, "test")) as connection:
        published = read_tables(connection, ["pgetl_shop", "pgetl_shop_inserts"], [table.table for table in tables])
        by_name = {one.table: one for one in published}
        for table in tables:
            one = by_name[table.table]
            assert lake_difference(connection, one, lake_rows(lake, table, one)) is None


def lake_rows(lake: Path, table: ShopTable, published: PublishedTable) -> Rows:
    delta = DeltaTable(Lake(str(lake)).table(table.place).uri)
    found = pa.table(delta.scan())
    if "_pgetl_kind" in found.column_names:
        return Counter(map(hashable, replayed(published.schema, found.to_pylist()).elements()))
    rows = Counter(tuples(found))
    assert Counter(map(hashable, by_duckdb(delta))) == rows
    return rows


@pytest.mark.parametrize("source_server", [18], indirect=True)
@pytest.mark.parametrize("way", [pytest.param("upsert", marks=pytest.mark.slow), "history", "merge_on_read"])
def test_a_shop_is_copied_while_it_is_traded_in(start: Start, tmp_path: Path, way: str) -> None:
    runs = start(way)
    with Trade(runs.databases.source, 1) as trade:
        run = runs.start()
        run.until(lambda: runs.all_ready, "all tables were Ready")
        enough = trade.transactions + 100
        run.until(lambda: trade.transactions > enough, "the trade went on")
        run.terminate()
        assert run.wait(60) == 0, run.said()
    assert runs.until_caught_up() == 0, runs.log
    assert_equal(runs.databases, tmp_path / "lake")
    assert set(runs.phases().values()) == {"Ready"}, runs.log


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_spark_reads_what_the_others_read(start: Start, tmp_path: Path, spark: SparkSession) -> None:
    runs = start()
    with Trade(runs.databases.source, 2):
        run = runs.start()
        time.sleep(10)
        run.terminate()
        assert run.wait(60) == 0, run.said()
    assert runs.until_caught_up() == 0, runs.log
    assert_equal(runs.databases, tmp_path / "lake")
    for table in SHOP:
        delta = DeltaTable(Lake(str(tmp_path / "lake")).table(table.place).uri)
        rows, files = pa.table(delta.scan()), delta.file_uris()
        found = spark.read.parquet(*files).toArrow() if files else rows
        assert found.column_names == rows.column_names
        assert Counter(tuples(found)) == Counter(tuples(rows)), table.name


@pytest.fixture
def spark() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.caseSensitive", "true").config("spark.sql.session.timeZone", "UTC")
    session = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    yield session
    session.stop()


@pytest.mark.slow
@pytest.mark.parametrize("source_server", [16], indirect=True)
@pytest.mark.parametrize("way", ["upsert", "merge_on_read"])
def test_killed_eight_times(start: Start, tmp_path: Path, way: str) -> None:
    runs, dice = start(way), random.Random(3)
    with Trade(runs.databases.source, 3):
        for _ in range(8):
            run = runs.start()
            time.sleep(dice.uniform(1.0, 8.0))
            assert run.running, run.said()
            run.kill()
    assert runs.until_caught_up(120) == 0, runs.log
    assert_equal(runs.databases, tmp_path / "lake")
    staged = [path for path in (tmp_path / "lake").rglob("_pgetl/copy-*/*") if path.is_file()]
    assert staged == []


@pytest.mark.parametrize("source_server", [18], indirect=True)
@pytest.mark.parametrize(
    ("failpoint", "way"),
    [
        ("apply.write_done", "merge_on_read"),
        ("apply.write_done", "landing"),
        pytest.param("apply.write_done", "upsert", marks=pytest.mark.slow),
        pytest.param("catchup.write_done", "upsert", marks=pytest.mark.slow),
        pytest.param("catchup.write_done", "merge_on_read", marks=pytest.mark.slow),
        pytest.param("catchup.write_done:2", "landing", marks=pytest.mark.slow),
        pytest.param("copy.published", "upsert", marks=pytest.mark.slow),
        pytest.param("copy.published", "merge_on_read", marks=pytest.mark.slow),
        pytest.param("copy.range_stored:5", "upsert", marks=pytest.mark.slow),
    ],
)
def test_died_between_the_lake_and_the_store(start: Start, tmp_path: Path, failpoint: str, way: str) -> None:
    runs = start(way)
    with Trade(runs.databases.source, 4):
        for _ in range(2):
            runs.start(PGETL_FAILPOINT=failpoint).wait(60)
    assert runs.until_caught_up() == 0, runs.log
    assert_equal(runs.databases, tmp_path / "lake")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_workers_and_mergers_are_killed(start: Start, tmp_path: Path) -> None:
    """Each at moments of its own, mergers now and then two at once. Nothing that has landed is left of it."""
    runs, dice = start("landing"), random.Random(5)
    with Trade(runs.databases.source, 5):
        for _ in range(5):
            run = runs.start()
            time.sleep(dice.uniform(2.0, 4.0))
            for _ in range(2):
                mergers = [runs.merge() for _ in range(dice.randint(1, 2))]
                _until_some_are_merged(mergers[0])
                time.sleep(dice.uniform(0.0, 0.3))
                for merger in mergers:
                    merger.kill()
            assert run.running, run.said()
            run.kill()
    assert runs.until_caught_up(120) == 0, runs.log
    assert_equal(runs.databases, tmp_path / "lake")
    assert set(runs.phases().values()) == {"Ready"}, runs.log
    landings = list((tmp_path / "lake" / "_pgetl").glob("shop.landing/*/*"))
    assert landings
    assert [file for place in landings for file in DeltaTable(str(place)).file_uris()] == []


def _until_some_are_merged(merger: Run) -> None:
    """Of its many tables the first; or it has ended by itself, for want of something to merge."""
    before = merger.log.read_bytes().count(b"landed batches are merged")
    while merger.running and merger.log.read_bytes().count(b"landed batches are merged") == before:
        time.sleep(0.02)
