"""What is done to a table at the source while it is followed, beside changes of its rows: the table stays equal, or it
is set aside, with the reason and the remedy, before anything is written that would not be right."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.comparing import differences
from tests.engine.destinations.delta.reading import rows_of
from tests.failures.pipeline import PipelineUnderTest
from tests.shop import ShopTable

pytestmark = pytest.mark.servers

BIG = "(select string_agg(md5(n::text), '') from generate_series(1, 100) n)"  # 3,200 bytes
LONG_KEYS = ShopTable(
    "public.long_keys",
    """create table public.long_keys (id text primary key, n int, note text);
       alter table public.long_keys alter id set storage external;
       insert into public.long_keys select repeat(md5(n::text), 75), 0, 'note' from generate_series(1, 100) n""",
)
LONG_KEYS_IN_FULL = ShopTable(
    "public.long_keys_in_full",
    LONG_KEYS.create.replace("long_keys", "long_keys_in_full")
    + "; alter table public.long_keys_in_full replica identity full",
)
GROWING = ShopTable(
    "public.growing",
    f"""create table public.growing (id int primary key, n int, big text) partition by range (id);
        alter table public.growing replica identity full;
        create table public.growing_1 partition of public.growing for values from (0) to (1000);
        alter table public.growing_1 replica identity full;
        alter table public.growing_1 alter big set storage external;
        insert into public.growing select n, 0, {BIG} from generate_series(1, 50) n""",
)
MUTE = ShopTable(
    "public.mute",
    """create table public.mute (id int, n int) partition by range (id);
       alter table public.mute replica identity full;
       create table public.mute_1 partition of public.mute for values from (0) to (1000);
       alter table public.mute_1 replica identity full;
       insert into public.mute select n, 0 from generate_series(1, 50) n""",
)
MOVING = ShopTable(
    "public.moving",
    """create table public.moving (id int primary key) partition by range (id);
       create table public.moving_1 partition of public.moving for values from (0) to (100);
       insert into public.moving values (1)""",
)
VACUUMED = ShopTable(
    "public.vacuumed",
    """create table public.vacuumed (id int primary key, n int);
       insert into public.vacuumed select n, 0 from generate_series(1, 50) n""",
)
LISTED = ShopTable(
    "public.listed",
    """create table public.listed (id int primary key, n int, hidden int);
       insert into public.listed select n, 0, 0 from generate_series(1, 50) n""",
    columns=("id", "n"),
)
EQUAL = (LONG_KEYS, LONG_KEYS_IN_FULL, GROWING, MUTE, VACUUMED, LISTED)


def table(name: str, columns: str, more: str = "") -> ShopTable:
    create = f"create table public.{name} ({columns}); {more}; insert into public.{name} (id) values (1), (2), (3)"
    return ShopTable(f"public.{name}", create)


LABELLED = ShopTable(
    "public.labelled",
    """create type public.moods as enum ('sad', 'glad');
       create table public.labelled (id int primary key, moods public.moods[]);
       insert into public.labelled values (1, '{sad}'), (2, '{glad}')""",
)
COMPOSED = ShopTable(
    "public.composed",
    """create type public.pair as (a int, b text);
       create domain public.some_pair as public.pair;
       create table public.composed (id int primary key, pair public.some_pair);
       insert into public.composed values (1, (1, 'one'))""",
)


SET_ASIDE = {
    LABELLED: (
        "alter type moods add value 'so so'; alter type moods rename value 'sad' to 'blue'",
        "select 1",
        "the label sad of the type public.moods was renamed",
    ),
    COMPOSED: (
        "alter type pair rename attribute b to c cascade",
        "select 1",
        "the attributes of the type public.pair are others",
    ),
    ShopTable(
        "public.relabelled",
        LABELLED.create.replace("moods", "feelings").replace("labelled", "relabelled"),
    ): (
        """alter type feelings rename value 'sad' to 'blue'; alter type feelings rename value 'glad' to 'sad';
           alter type feelings rename value 'blue' to 'glad'""",
        "insert into relabelled values (3, '{sad}')",
        "the label sad of the type public.feelings was renamed",
    ),
    ShopTable("public.recomposed", COMPOSED.create.replace("pair", "couple").replace("composed", "recomposed")): (
        "alter type couple drop attribute b cascade; alter type couple add attribute b text cascade",
        "select 1",
        "the attributes of the type public.couple are others",
    ),
    table(
        "unlogged",
        "id int primary key) partition by range (id",
        "create table unlogged_1 partition of unlogged for values from (0) to (100)",
    ): (
        "alter table unlogged_1 set unlogged",
        "insert into unlogged values (4)",
        "the WAL has no changes of public.unlogged_1, which is unlogged or foreign",
    ),
    table("identity", "id int primary key, n int"): (
        "alter table identity replica identity full",
        "update identity set n = 1",
        "its replica identity was default and is full",
    ),
    table("another_key", "id int primary key, n int generated always as identity"): (
        "alter table another_key drop constraint another_key_pkey, add primary key (n)",
        "delete from another_key where n = 2",
        "its replica identity was (id) and is (n)",
    ),
    table(
        "key_beside_full", "id int primary key, n int default 1", "alter table key_beside_full replica identity full"
    ): (
        "alter table key_beside_full drop constraint key_beside_full_pkey",
        "update key_beside_full set n = 2",
        "its primary key was (id) and is ()",
    ),
    table("exchanged", "id int primary key, n int default 1"): (
        "alter table exchanged drop n, add n int",
        "update exchanged set n = 2 where id = 1",
        "n was dropped and added again",
    ),
    table("exchanged_and_quiet", "id int primary key, n int default 1"): (
        "alter table exchanged_and_quiet drop n, add n int",
        "select 1",
        "n was dropped and added again",
    ),
    table("rewritten", "id int primary key, n int default 1"): (
        "vacuum full rewritten",
        "alter table rewritten alter n type int using n + 1",
        "an ALTER may have changed values in all rows",
    ),
    table("computed", "id int primary key, n int default 1, twice int generated always as (n * 2) stored"): (
        "alter table computed drop twice, add twice int generated always as (n * 3) stored",
        "update computed set n = 2 where id = 1",
        "twice is not computed as it was",
    ),
    table("precision", "id int primary key, n numeric(9, 2)"): (
        "alter table precision alter n type numeric(14, 5)",
        "update precision set n = 1.23456",
        "n has another length, precision or scale",
    ),
    table(
        "partitions",
        "id int not null unique, n int default 1) partition by range (id",
        "alter table partitions replica identity using index partitions_id_key; "
        "create table partitions_1 partition of partitions for values from (0) to (100); "
        "alter table partitions_1 replica identity using index partitions_1_id_key",
    ): (
        """create table partitions_2 (id int not null unique, n int primary key);
           alter table partitions attach partition partitions_2 for values from (100) to (200);
           insert into partitions values (100, 5)""",
        "update partitions set id = 101 where id = 100",
        "The replica identity of public.partitions_2, a partition of public.partitions, is another",
    ),
}


@pytest.fixture
def tables(databases: Databases, state_database: Database, tmp_path: Path) -> Iterator[PipelineUnderTest]:
    every = (*EQUAL, *SET_ASIDE, MOVING)
    pipeline = PipelineUnderTest(databases, state_database, tmp_path, "shop", every)
    pipeline.declared = tuple(one.name for one in every if not one.columns)
    pipeline.more = '[[table]]\nname = "public.listed"\ncolumns = ["id", "n"]'
    pipeline.environment["TEST_WATCH_SECONDS"] = "1"
    for one in every:
        databases.source.execute(one.create)
    yield pipeline
    pipeline.close()


def change_long_values(source: Database) -> None:
    """Many at once, few at once, keys that move, rows that go."""
    for name in ("long_keys", "long_keys_in_full"):
        source.execute(f"update {name} set n = n + 1")
        source.execute(f"update {name} set n = n + 1 where id like 'c4%'")
        source.execute(f"update {name} set id = reverse(id) where id like 'e%'")
        source.execute(f"delete from {name} where id like 'a%'")
    source.execute("create table growing_2 partition of growing for values from (1000) to (2000)")
    source.execute("alter table growing_2 alter big set storage external")
    source.execute(f"insert into growing select n, 0, {BIG} from generate_series(1001, 1050) n")
    source.execute("update growing set n = n + 1")
    source.execute("update growing set id = id + 100 where id % 2 = 0")
    source.execute("update growing set id = id + 500 where id in (7, 1007)")
    source.execute("delete from growing where id % 5 = 0")


def reasons(pipeline: PipelineUnderTest) -> dict[str, str]:
    statement = """select t.table_schema || '.' || t.table_name, h.phase ->> 'reason' || ' ' || (h.phase ->> 'solution')
                   from pgetl.tables t join pgetl.history h using (pipeline, table_schema, table_name)
                   where h.entry = t.current and h.phase ->> 'phase' = 'Errored'"""
    return dict(pipeline.state.execute(statement))


def test_a_table_is_equal_or_it_is_set_aside_and_says_why(tables: PipelineUnderTest) -> None:
    aside = {one.name for one in SET_ASIDE}
    with tables.follow() as run:
        for alter, change, _ in SET_ASIDE.values():
            tables.source.execute(alter)
            tables.source.execute(change)
        change_long_values(tables.source)
        tables.source.execute("create table mute_2 partition of mute for values from (1000) to (2000)")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            tables.source.execute("insert into mute values (1000, 1); update mute set n = 2")
        run.until_said(
            "public.mute_2, a partition of public.mute, has no replica identity: as it is published, its UPDATE and "
            'DELETE fail at the source. `ALTER TABLE "public"."mute_2" REPLICA IDENTITY FULL` at the source lets them'
        )
        tables.source.execute("create table moving_2 (like moving including all)")
        tables.source.execute("alter table moving attach partition moving_2 for values from (100) to (200)")
        run.until_said("public.moving_2 was attached to public.moving: rows that it had before are not in the")
        tables.source.execute(
            """begin; create table moving_3 (like moving including all); insert into moving_3 values (200);
               alter table moving attach partition moving_3 for values from (200) to (300); commit"""
        )
        run.until_said("public.moving_3 was attached to public.moving: rows that it had before are not in the")
        tables.source.execute("truncate moving_3")
        run.until_said("public.moving_3, a partition of public.moving, was truncated, or written anew: rows")
        tables.source.execute(
            """begin; alter table moving detach partition moving_1; delete from moving_1;
               alter table moving attach partition moving_1 for values from (0) to (100); commit"""
        )
        run.until_said("public.moving_1 was detached from public.moving and attached again: what was changed in it")
        tables.source.execute("alter table moving detach partition moving_1")
        run.until_said("1 of the partitions of public.moving were detached or dropped: their rows stay in the")
        tables.source.execute("alter table mute_2 replica identity full")
        tables.source.execute("insert into mute values (1000, 1), (1000, 1); update mute set n = n + 1")
        tables.source.execute("alter table listed alter hidden type bigint")
        tables.source.execute("update listed set n = n + 1, hidden = 5")
        tables.source.execute("vacuum full vacuumed")
        tables.source.execute("truncate vacuumed")
        tables.source.execute("insert into vacuumed values (1, 1)")
        run.until(lambda: reasons(tables).keys() >= aside, "all that are changed were set aside")
        run.until(lambda: not differences(tables.databases, EQUAL), "the others are equal")
        found = reasons(tables)
        tables.source.execute("alter table partitions_2 replica identity full")
        for name in ("public.partitions", "public.precision"):
            tables.pgetl("reset", name).assert_well()
        run.until(lambda: reasons(tables).keys() == aside - {"public.partitions", "public.precision"}, "the reset")
        run.until(lambda: "DataSync" not in tables.phases().values(), "the copies")
        tables.source.execute("update partitions set id = 102 where id = 101")
        run.until(tables.arrives("select 1 from partitions where id = 102"), "they go on")
        run.stop()
    assert "mute_2 was attached" not in run.said.out
    assert found.keys() == aside, found
    for one, (_, _, why) in SET_ASIDE.items():
        assert why in found[one.name]
        assert f"`pgetl reset FILE {one.name}`" in found[one.name]
    tables.assert_equal([one for one in (*EQUAL, *SET_ASIDE) if tables.phases()[one.name] == "Ready"])


FILTERED = ShopTable(
    "public.filtered",
    f"""create table public.filtered (id int primary key, n int, big text);
        alter table public.filtered alter big set storage external;
        insert into public.filtered select n, 0, {BIG} from generate_series(1, 5) n""",
    where="id > 3",
)


@pytest.mark.slow
def test_a_row_that_enters_the_row_filter_without_a_large_value_has_its_table_copied_again(
    databases: Databases, state_database: Database, tmp_path: Path
) -> None:
    """Without a person: nothing can be settled that would bring the value."""
    pipeline = PipelineUnderTest(databases, state_database, tmp_path, tables=(FILTERED,), declared=())
    pipeline.more = '[[table]]\nname = "public.filtered"\nwhere = "id > 3"'
    pipeline.source.execute(FILTERED.create)
    with pipeline.follow() as run:
        pipeline.source.execute("update filtered set id = 11, n = 1 where id = 1")
        run.until(lambda: reasons(pipeline), "the table was set aside")
        assert reasons(pipeline)["public.filtered"] == (
            "A row that an UPDATE brought into the row filter of public.filtered came without big: the source does not "
            "send large values that the UPDATE left unchanged. It is copied again by itself. `ALTER TABLE … REPLICA "
            "IDENTITY FULL` at the source has such values sent."
        )
        assert pipeline.rows("filtered") == 2
        run.until(lambda: not differences(databases, [FILTERED]), "it was copied again")
        assert run.stop().code == 0


def test_large_keys_in_a_lake(databases: Databases, state_database: Database, tmp_path: Path) -> None:
    tables = (LONG_KEYS, LONG_KEYS_IN_FULL, GROWING)
    pipeline = PipelineUnderTest(databases, state_database, tmp_path, tables=tables)
    pipeline.declared = tuple(one.name for one in tables)
    pipeline.place = f'type = "delta"\nuri = "{tmp_path}/lake"'
    for one in tables:
        pipeline.source.execute(one.create)
    pipeline.catch_up().assert_well()
    change_long_values(pipeline.source)
    pipeline.catch_up().assert_well()
    for one in tables:
        held = rows_of(tmp_path / "lake" / "public" / one.table.name)
        assert sorted(held) == sorted(pipeline.source.execute(f"select * from {one.name}"))


def test_what_only_the_catalog_knows_is_asked_when_the_source_describes_a_table_anew(
    followed: PipelineUnderTest,
) -> None:
    """And not only every two minutes."""
    with followed.follow() as run:
        followed.source.execute("alter table items drop what, add what text; update items set what = 'x' where id = 1")
        run.until(lambda: reasons(followed), "it was set aside")
        assert "what was dropped and added again" in reasons(followed)["public.items"]
        run.stop()
    assert followed.destination.execute("select what from items where id = 1") == [("item 1",)]


HIDDEN = {
    "drop what, add what text": "what was dropped and added again",
    "alter what type text using what || '!'": "an ALTER may have changed values in all rows",
}


@pytest.mark.parametrize("alter", HIDDEN)
def test_nothing_is_written_after_a_change_that_the_stream_does_not_show(
    followed: PipelineUnderTest, alter: str
) -> None:
    """Not even until a look at the catalog would find it."""
    before = followed.destination.execute("select * from items order by id")
    followed.environment |= {"TEST_WATCH_SECONDS": "1e6", "TEST_WATCH_AGAIN_SECONDS": "1e6"}
    with followed.follow() as run:
        for statement in ("analyze items", "vacuum full orders", "update orders set amount = 1"):
            followed.source.execute(statement)
        with followed.source.connect(autocommit=False) as session:
            session.execute(f"alter table items {alter}".encode())
            session.execute("update items set what = 'x', id = 1000 where id = 7")
            session.commit()
        run.until(lambda: reasons(followed), "it was set aside")
        assert HIDDEN[alter] in reasons(followed)["public.items"]
        run.until(followed.arrives("select 1 from orders having max(amount) = 1"), "the others go on")
        run.stop()
    assert followed.destination.execute("select * from items order by id") == before
    assert reasons(followed).keys() == {"public.items"}


ROTATED = ShopTable(
    "public.rotated",
    """create table public.rotated (id int primary key, n int) partition by range (id);
       create table public.rotated_1 partition of public.rotated for values from (0) to (1000);
       insert into public.rotated select n, n from generate_series(1, 50) n""",
)


@pytest.mark.slow
def test_where_rows_lie_is_remembered_from_run_to_run(shop: PipelineUnderTest) -> None:
    """Files that were exchanged long ago do not make a rewrite of what is altered later, and in partitions that came
    after the copy there can be one as well."""
    shop.source.execute(ROTATED.create)
    shop.tables, shop.declared = (*shop.tables, ROTATED), (*shop.declared, "public.rotated")
    shop.catch_up().assert_well()
    shop.source.execute("vacuum full orders")
    shop.source.execute("create table rotated_2 partition of rotated for values from (1000) to (2000)")
    shop.source.execute("update rotated set id = id + 1000")
    shop.source.execute("drop table rotated_1")
    shop.catch_up().assert_well()
    shop.source.execute("alter table orders alter amount set not null")
    shop.source.execute("alter table rotated alter n type int using n + 1")
    shop.catch_up()
    assert reasons(shop).keys() == {"public.rotated"}
    assert "an ALTER may have changed values in all rows" in reasons(shop)["public.rotated"]
    shop.pgetl("reset", "public.rotated").assert_well()
    shop.assert_nothing_lost()
