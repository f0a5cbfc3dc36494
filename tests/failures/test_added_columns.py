"""Columns that are added, renamed or dropped at the source while its tables are followed: the destination's tables are
altered in order with the rows, without a new copy and without a restart."""

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.comparing import differences
from tests.failures.pipeline import PipelineUnderTest, Running
from tests.shop import ShopTable

pytestmark = pytest.mark.servers


def table(name: str, create: str) -> ShopTable:
    return ShopTable(f"public.{name}", create.replace("NAME", name))


PLAIN = table(
    "plain",
    """create table NAME (id int primary key, note text);
       insert into NAME select n, 'note' from generate_series(1, 50) n""",
)
BAG = table(
    "bag",
    """create table NAME (id int, note text); alter table NAME replica identity full;
       insert into NAME select n % 7, 'note' from generate_series(1, 50) n""",
)
LEAVES = table(
    "leaves",
    """create table NAME (id int primary key, note text) partition by range (id);
       create table NAME_1 partition of NAME for values from (0) to (100);
       create table NAME_2 partition of NAME for values from (100) to (200);
       insert into NAME select n, 'note' from generate_series(1, 150) n""",
)
LARGE = table(
    "large",
    """create table NAME (id int primary key, note text, n int); alter table NAME alter note set storage external;
       insert into NAME select n, repeat(md5(n::text), 100), 0 from generate_series(1, 20) n""",
)
EVERY = (PLAIN, BAG, LEAVES, LARGE)

ALTERS = (
    # what is changed before it in its transaction, the ALTER, what is changed after it
    ("update {t} set note = 'before' where id = 2", "add a int", "insert into {t} values (191, 'new', {n}1)"),
    ("delete from {t} where id = 3", "add b text not null default 'it''s \\ b'", "update {t} set note = b"),
    ("insert into {t} (id, note) values (192, 'before')", "add c timestamptz default '2026-01-02 03:04:05+02'", ""),
    ("", "add d numeric(12, 3) default 1.5, add e int[] default '{{1,2}}', add f box default '(1,1),(0,0)'", ""),
    ("update {t} set note = 'again'", "add g text default ''", "update {t} set g = null where id % 2 = 0"),
    ("", "add h boolean", "update {t} set h = true where id % 3 = 0"),
)


RENAMES = (
    ("update {t} set note = 'before' where id = 2", "rename note to remark", "update {t} set remark = '' where id = 3"),
    ("insert into {t} (id, remark) values (191, 'x')", "drop remark", "delete from {t} where id = 191"),
    ("delete from {t} where id = 4", "rename id to number", "insert into {t} (number) values (192)"),
    ("", "add words text not null default 'w'", "update {t} set words = 'v' where number % 3 = 0"),
    ("update {t} set words = 'u'; alter table {t} rename words to word", "add more int", "update {t} set more = 5"),
    (
        "",
        "rename more to less; alter table {t} rename less to least",
        "insert into {t} (number, least) values (193, 4)",
    ),
)


RETYPES = (
    ("update {t} set a = '123'", "alter a type varchar(10)", "update {t} set a = '1234567890'"),
    ("", "alter b type numeric(20, 2)", "update {t} set b = 123456789012345.67 where id % 2 = 0"),
    ("", "alter a type text, alter c type timestamp", "update {t} set a = repeat(a, 5), c = '2026-01-02 03:04:05.678'"),
    (
        "",
        "rename a to words; alter table {t} alter words type varchar",
        "insert into {t} (id, words) values (192, 'w')",
    ),
)


@pytest.fixture
def tables(databases: Databases, state_database: Database, tmp_path: Path) -> Iterator[PipelineUnderTest]:
    pipeline = PipelineUnderTest(databases, state_database, tmp_path, "shop", EVERY)
    pipeline.declared = tuple(one.name for one in EVERY)
    pipeline.environment["TEST_WATCH_SECONDS"] = "1"
    for one in EVERY:
        databases.source.execute(one.create)
    yield pipeline
    pipeline.close()


def alter(source: Database, step: int, alters: Sequence[tuple[str, str, str]] = ALTERS) -> None:
    before, change, after = alters[step]
    for one in EVERY:
        name = one.table.name
        nothing = "null, " if one is LARGE else ""
        statements = f"{before}; alter table {name} {change}; {after}".format(t=name, n=nothing)
        with source.connect(autocommit=False) as session:
            for statement in filter(None, map(str.strip, statements.split("; "))):
                session.execute(statement.encode())
            session.commit()
        if alters is ALTERS:
            source.execute(f"update {name} set note = note || '.' where id % 5 = 1")


def reasons(pipeline: PipelineUnderTest) -> dict[str, str]:
    statement = """select t.table_schema || '.' || t.table_name, h.phase ->> 'reason'
                   from pgetl.tables t join pgetl.history h using (pipeline, table_schema, table_name)
                   where h.entry = t.current and h.phase ->> 'phase' = 'Errored'"""
    return dict(pipeline.state.execute(statement))


def until_equal(pipeline: PipelineUnderTest, run: Running) -> None:
    run.until(lambda: reasons(pipeline) or not differences(pipeline.databases, EVERY), "the tables are equal")
    assert reasons(pipeline) == {}
    pipeline.assert_equal()


def test_columns_are_added_while_tables_are_followed(tables: PipelineUnderTest) -> None:
    with tables.follow() as run:
        for step in range(len(ALTERS)):
            alter(tables.source, step)
            if step % 2:
                until_equal(tables, run)
        until_equal(tables, run)
        run.stop()
    assert [tables.copies(one.name) for one in EVERY] == [1] * len(EVERY)
    assert set(tables.phases().values()) == {"Ready"}
    tables.source.execute("insert into plain (id, note) values (177, 'later')")
    tables.catch_up().assert_well()
    tables.assert_equal()


def verified(pipeline: PipelineUnderTest, *tables: str) -> bool:
    return pipeline.pgetl("verify", *tables).code == 0


@pytest.mark.parametrize(
    "option",
    [pytest.param("", marks=pytest.mark.slow, id="rewritten"), pytest.param('updates = "merge_on_read"', id="marked")],
)
def test_columns_are_added_to_tables_of_a_lake(tables: PipelineUnderTest, option: str) -> None:
    tables.place = f'type = "delta"\nuri = "{tables.folder}/lake"'
    tables.destination_options = option
    tables.more = '[stream]\nmin_interval = "200ms"'
    with tables.follow() as run:
        for step in range(len(ALTERS)):
            alter(tables.source, step)
            if step % 3 == 2:
                run.until(lambda: reasons(tables) or verified(tables), "the tables are equal")
        assert reasons(tables) == {}
        run.stop()
    assert [tables.copies(one.name) for one in EVERY] == [1] * len(EVERY)
    said = tables.pgetl("verify")
    assert said.code == 0, said


COLUMNS_OF_PLAIN = """select string_agg(attname, ' ' order by attnum) from pg_attribute
                      where attrelid = 'plain'::regclass and attnum > 0 and not attisdropped"""
TYPES_OF_PLAIN = """select format_type(atttypid, atttypmod) from pg_attribute
                    where attrelid = 'plain'::regclass and attnum > 2 order by attnum"""
FAILPOINTS = ("schema.storing", "schema.stored", "schema.changing", "schema.changed", "apply.write", "apply.write_done")


@pytest.mark.parametrize("place", [pytest.param("postgres", marks=pytest.mark.slow), "delta"])
def test_it_dies_between_any_two_steps(tables: PipelineUnderTest, place: str) -> None:
    """Each time another column is added, on top of what the dead run has left undone."""
    if place == "delta":
        tables.place = f'type = "delta"\nuri = "{tables.folder}/lake"'
    tables.catch_up().assert_well()
    for step, failpoint in enumerate(FAILPOINTS):
        alter(tables.source, step)
        tables.environment["PGETL_FAILPOINT"] = failpoint
        said = tables.catch_up()
        assert said.code == -signal.SIGKILL, f"{failpoint} was never passed: {said}"
    del tables.environment["PGETL_FAILPOINT"]
    tables.catch_up().assert_well()
    assert [tables.copies(one.name) for one in EVERY] == [1] * len(EVERY)
    assert verified(tables)


def test_several_in_one_transaction_and_what_is_taken_back(tables: PipelineUnderTest) -> None:
    tables.catch_up().assert_well()
    statements = """
        insert into plain values (60, 'none');
        alter table plain add a int; insert into plain values (61, 'a', 1);
        alter table plain add b text default 'b'; insert into plain values (62, 'a, b', 2); update plain set note = b;
        savepoint s; alter table plain add c int default 3; insert into plain values (63, 'lost', 2, 'x', 5);
        rollback to s; insert into plain values (64, 'no c', 3, null);
        alter table plain add d int default 4; insert into plain values (65, 'd', 4, 'y', 5)"""
    with tables.source.connect(autocommit=False) as session:
        for statement in statements.split(";"):
            session.execute(statement.encode())
        session.rollback()
        for statement in statements.split(";"):
            session.execute(statement.encode())
        session.commit()
    tables.environment["PGETL_FAILPOINT"] = "schema.stored:3"
    assert tables.catch_up().code == -signal.SIGKILL
    del tables.environment["PGETL_FAILPOINT"]
    tables.catch_up().assert_well()
    tables.assert_equal()
    assert tables.copies("public.plain") == 1
    ((columns,),) = tables.destination.execute(COLUMNS_OF_PLAIN)
    assert columns == "id note a b d"


def test_the_versions_of_a_table_are_shown(tables: PipelineUnderTest) -> None:
    tables.catch_up().assert_well()
    tables.source.execute("alter table plain add a numeric(9, 2); insert into plain (id) values (60)")
    tables.source.execute("alter table plain add b text default 'it'; insert into plain (id) values (61)")
    run = tables.catch_up()
    assert "public.plain was altered at " in run.out
    assert "b text added, with a value in existing rows." in run.out
    lines = tables.pgetl("schema", "public.plain").out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["VERSION", "1", "2", "3"]
    for line, words in zip(
        lines[1:4],
        ("as copied: id integer, note text", "a numeric(9,2) added", "b text added, with a value in existing rows"),
        strict=True,
    ):
        assert " yes " in line
        assert line.endswith(words)
    assert lines[-1] == "The table is Ready"
    found = json.loads(tables.pgetl("schema", "public.plain", "--json").out)
    assert [one["applied"] for one in found] == [True, True, True]
    assert all(one["recorded"] > 1.6e9 for one in found)
    assert tables.pgetl("schema", "public.other").code != 0


@pytest.mark.parametrize("place", ["postgres", pytest.param("delta", marks=pytest.mark.slow), "marked"])
def test_columns_are_renamed_and_dropped(tables: PipelineUnderTest, place: str) -> None:
    if place != "postgres":
        tables.place = f'type = "delta"\nuri = "{tables.folder}/lake"'
        tables.more = '[stream]\nmin_interval = "200ms"'
        tables.destination_options = 'updates = "merge_on_read"' * (place == "marked")
    with tables.follow() as run:
        for step in range(len(RENAMES)):
            alter(tables.source, step, RENAMES)
            if step % 2:
                run.until(lambda: reasons(tables) or verified(tables), "the tables are equal")
                assert reasons(tables) == {}
        run.stop()
    assert [tables.copies(one.name) for one in EVERY] == [1] * len(EVERY)
    said = tables.pgetl("verify")
    assert said.code == 0, said
    if place == "postgres":
        tables.assert_equal()
        assert tables.destination.execute("select count(remark) from plain where number < 50") != [(0,)]


@pytest.mark.parametrize("place", [pytest.param("postgres", marks=pytest.mark.slow), "delta"])
def test_types_that_keep_all_values_are_widened(tables: PipelineUnderTest, place: str) -> None:
    for one in EVERY:
        tables.source.execute(f"alter table {one.table.name} add a varchar(3), add b numeric(9, 2), add c timestamp(0)")
    if place == "delta":
        tables.place = f'type = "delta"\nuri = "{tables.folder}/lake"'
        tables.destination_options = 'out_of_range = "text"'  # so that a numeric is a string, whatever its precision
        tables.more = '[stream]\nmin_interval = "200ms"'
    with tables.follow() as run:
        for step in range(len(RETYPES)):
            alter(tables.source, step, RETYPES)
            run.until(lambda: reasons(tables) or verified(tables), "the tables are equal")
            assert reasons(tables) == {}
        run.stop()
    assert [tables.copies(one.name) for one in EVERY] == [1] * len(EVERY)
    if place == "postgres":
        tables.assert_equal()
        found = tables.destination.execute(TYPES_OF_PLAIN)
        assert found == [("character varying",), ("numeric(20,2)",), ("timestamp without time zone",)]


def test_types_that_a_lake_would_not_keep_and_values_that_may_be_computed(
    tables: PipelineUnderTest,
) -> None:
    tables.source.execute("alter table plain add a timestamp; alter table large alter n type smallint")
    tables.place = f'type = "delta"\nuri = "{tables.folder}/lake"'
    tables.catch_up().assert_well()
    tables.source.execute(
        "set timezone = 'UTC'; alter table plain alter a type timestamptz; update plain set a = now()"
    )
    tables.source.execute("alter table large alter n type int using n + 1; insert into large (id) values (77)")
    assert tables.catch_up().code == 4
    found = reasons(tables)
    assert "(what existing rows have in a may be other values" in found["public.plain"], "they are written otherwise"
    assert "(what existing rows have in n may be other values, which are not in the WAL)" in found["public.large"]


@pytest.mark.parametrize("place", ["postgres", "delta"])
def test_tables_are_altered_between_their_copy_and_their_hand_over(tables: PipelineUnderTest, place: str) -> None:
    """What has changed since the snapshot is in the group's own slot, and so are the alterations."""
    if place == "delta":
        tables.place = f'type = "delta"\nuri = "{tables.folder}/lake"'
    tables.copy_options = "table_workers = 1"
    tables.environment["PGETL_FAILPOINT"] = "copy.finished"
    assert tables.catch_up().code == -signal.SIGKILL
    for step in range(3):
        alter(tables.source, step)
    tables.environment["PGETL_FAILPOINT"] = "schema.stored:2"
    assert tables.catch_up().code == -signal.SIGKILL
    del tables.environment["PGETL_FAILPOINT"]
    tables.catch_up().assert_well()
    assert verified(tables)
    assert set(tables.phases().values()) == {"Ready"}
    assert max(tables.copies(one.name) for one in EVERY) <= 2
    if place == "postgres":
        tables.assert_equal()


def test_an_altered_table_that_no_row_has_followed_is_as_it_was(tables: PipelineUnderTest) -> None:
    """It is not compared, and no run fails for it; it is altered with its next row."""
    tables.catch_up().assert_well()
    for one in EVERY:
        tables.source.execute(f"alter table {one.table.name} add a int default 5")
    for _ in range(2):
        tables.catch_up().assert_well()
    said = tables.pgetl("verify")
    assert said.code == 0, said
    for one in EVERY:
        tables.source.execute(f"update {one.table.name} set a = 6 where id = 7")
    tables.catch_up().assert_well()
    assert verified(tables)
    assert [tables.copies(one.name) for one in EVERY] == [1] * len(EVERY)


@pytest.mark.parametrize(("place", "trigger"), [("postgres", False), ("delta", False), ("postgres", True)])
def test_columns_that_become_nullable(tables: PipelineUnderTest, place: str, trigger: bool) -> None:
    """Also in the very transaction of the first null, and beside other alterations. The key stays as it is."""
    for one in EVERY:
        tables.source.execute(
            f"alter table {one.table.name} add a int not null default 1, add b int not null default 2".replace(
                "NAME", ""
            )
        )
    if place == "delta":
        tables.place = f'type = "delta"\nuri = "{tables.folder}/lake"'
    if trigger:
        tables.ddl("install").assert_well()
    tables.catch_up().assert_well()
    for one in EVERY:
        name = one.table.name
        tables.source.execute(f"alter table {name} alter a drop not null; update {name} set a = null where id = 5")
    tables.environment["PGETL_FAILPOINT"] = "schema.changing"
    assert tables.catch_up().code == -signal.SIGKILL
    del tables.environment["PGETL_FAILPOINT"]
    tables.catch_up().assert_well()
    assert verified(tables)
    for one in EVERY:
        name = one.table.name
        tables.source.execute(f"alter table {name} alter b drop not null; alter table {name} rename b to c")
        tables.source.execute(f"update {name} set c = null where id = 6; alter table {name} alter a set default 5")
    tables.catch_up().assert_well()
    assert verified(tables)
    assert [tables.copies(one.name) for one in EVERY] == [1] * len(EVERY)
