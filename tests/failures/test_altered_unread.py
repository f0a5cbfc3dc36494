"""Several ALTERs of a table before the stream reads the first row under them: the catalog shows the last of them only.
The table stays equal, or it is set aside with the reason; it is never Ready and different."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.failures.pipeline import PipelineUnderTest

pytestmark = pytest.mark.servers

PLAIN = """create table {t} (id int primary key, note text);
           insert into {t} select n, 'note' || n from generate_series(1, 20) n"""
LEAVES = """create table {t} (id int primary key, note text) partition by range (id);
            create table {t}_1 partition of {t} for values from (0) to (100);
            insert into {t} select n, 'note' from generate_series(1, 20) n"""
COMPUTED = """create table {t} (id int primary key, n int, g int generated always as (n * 2) stored);
              insert into {t} select n, n from generate_series(1, 20) n"""
ADDRESSES = """create table {t} (id int primary key, a cidr);
               insert into {t} values (1, '10.1.2.3/32'), (2, '10.1.0.0/16')"""

# How the table is made, and what is done to it, each in a transaction of its own; None: what is so far is streamed.
STORIES: dict[str, tuple[str, tuple[str | None, ...]]] = {
    "renamed_and_computed": (
        PLAIN,
        (
            "alter table {t} rename note to remark",
            "alter table {t} alter remark type text using upper(remark)",
            "update {t} set id = id where id = 1",
        ),
    ),
    "computed_and_renamed": (
        PLAIN,
        (
            "alter table {t} alter note type text using upper(note); alter table {t} rename note to remark",
            "update {t} set id = id where id = 1",
        ),
    ),
    "added_twice": (
        PLAIN,
        (
            "alter table {t} add x int default 5",
            "insert into {t} values (51, 'n', 1)",
            "alter table {t} drop x, add x int default 7",
            "insert into {t} values (52, 'n', 2)",
        ),
    ),
    "renamed_dropped_added": (
        PLAIN,
        (
            "alter table {t} rename note to x",
            "update {t} set x = 'abc' where id = 1",
            "alter table {t} drop x; alter table {t} add x text",
            "insert into {t} values (52, 'n')",
        ),
    ),
    "computed_no_more": (
        COMPUTED,
        ("alter table {t} alter g drop expression", "update {t} set n = 0 where id = 1"),
    ),
    "leaves_exchanged": (
        LEAVES,
        (
            "create table {t}_2 partition of {t} for values from (100) to (200)",
            "insert into {t} select n, 'note' from generate_series(101, 110) n",
            None,
            "delete from {t} where id < 100",
            "drop table {t}_1",
            "alter table {t} add x int default 5",
            "insert into {t} values (120, 'n', 1)",
        ),
    ),
    "written_otherwise": (ADDRESSES, ("alter table {t} alter a type inet", "update {t} set id = id where id = 2")),
    # What is not open stays no question.
    "dropped_and_added": (
        PLAIN,
        ("alter table {t} drop note; alter table {t} add x text default 'x'", "insert into {t} values (52, 'n')"),
    ),
    "added_and_strict": (
        PLAIN,
        (
            "alter table {t} add x int default 5",
            "insert into {t} values (51, 'n')",
            "alter table {t} alter x set not null",
        ),
    ),
}
CARRIED = ("leaves_exchanged", "dropped_and_added", "added_and_strict")


@pytest.fixture
def tables(databases: Databases, state_database: Database, tmp_path: Path) -> Iterator[PipelineUnderTest]:
    pipeline = PipelineUnderTest(databases, state_database, tmp_path)
    pipeline.declared = tuple(f"public.{name}" for name in STORIES)
    for name, (create, _) in STORIES.items():
        databases.source.execute(create.format(t=name))
    yield pipeline
    pipeline.close()


@pytest.mark.parametrize("place", [pytest.param("postgres", marks=pytest.mark.slow), "delta"])
def test_a_table_is_equal_or_it_is_set_aside(tables: PipelineUnderTest, place: str) -> None:
    if place == "delta":
        tables.place = f'type = "delta"\nuri = "{tables.folder}/lake"'
    tables.catch_up().assert_well()
    for name, (_, steps) in STORIES.items():
        for step in steps:
            if step is None:
                tables.catch_up()
            else:
                tables.source.execute(step.format(t=name))
    tables.catch_up()
    phases = {name.removeprefix("public."): phase for name, phase in tables.phases().items()}
    ready = [name for name in STORIES if phases[name] == "Ready"]
    assert set(CARRIED) <= set(ready)
    said = tables.pgetl("verify", *(f"public.{name}" for name in ready))
    assert said.code == 0, said
    reset = [name for name in STORIES if name not in ready]
    for name in reset:
        tables.pgetl("reset", f"public.{name}").assert_well()
    tables.catch_up().assert_well()
    assert tables.pgetl("verify").code == 0
