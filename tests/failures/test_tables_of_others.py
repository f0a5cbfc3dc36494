"""The destination has a table of the name already, with rows in it that the pipeline did not write: they are not
touched before somebody has said that they may go. What the pipeline wrote itself is its own, whatever is forgotten."""

from dataclasses import replace

import pytest

from tests.failures.pipeline import ITEMS, ORDERS, PipelineUnderTest

pytestmark = pytest.mark.servers

THEIRS = [(1, "theirs"), (7, "theirs, too")]
HOLDS = "public.items in the destination holds rows that pgetl did not write: a copy would replace them."
REMEDY = (
    "Rename or empty it there, or give the table another `destination`; "
    'or, if all that is in it may go, set `existing = "replace"` for it.'
)


@pytest.fixture
def taken(shop: PipelineUnderTest) -> PipelineUnderTest:
    """Somebody has a table of items in the destination."""
    shop.destination.execute("create table items (id int primary key, what text)")
    shop.destination.execute("insert into items values (1, 'theirs'), (7, 'theirs, too')")
    return shop


def assert_refused(shop: PipelineUnderTest) -> None:
    """By `check` and by every run, before anything is made anywhere."""
    checked = shop.pgetl("check")
    assert checked.code == 3, checked
    assert HOLDS in checked.out
    for verb in (("run", "--until", "caught-up"), ("copy",)):
        said = shop.pgetl(*verb)
        assert said.code == 3, said
        assert said.complaint == f"{shop.file}:2: {HOLDS} {REMEDY}"
    assert (shop.publications(), shop.slots()) == ([], [])
    assert shop.destination.execute("select * from items order by id") == THEIRS


def test_it_is_refused_and_can_be_moved_away(taken: PipelineUnderTest) -> None:
    assert_refused(taken)
    taken.destination.execute("alter table items rename to items_of_theirs")
    taken.assert_nothing_lost()
    assert taken.destination.execute("select * from items_of_theirs order by id") == THEIRS


def test_it_can_go_elsewhere(taken: PipelineUnderTest) -> None:
    assert_refused(taken)
    taken.declared = ("public.orders",)
    taken.more = '[[table]]\nname = "public.items"\ndestination = "public.items_too"'
    taken.tables = (replace(ITEMS, destination="public.items_too"), ORDERS)
    taken.assert_nothing_lost()
    assert taken.destination.execute("select * from items order by id") == THEIRS


def test_it_is_replaced_if_somebody_says_so_of_the_table(taken: PipelineUnderTest) -> None:
    """Readers see the old rows until then; views and grants on it stay, and the word can be taken back."""
    taken.destination.execute("create view what_there_is as select what from items")
    taken.declared = ("public.orders",)
    taken.more = '[[table]]\nname = "public.items"\nexisting = "replace"'
    checked = taken.pgetl("check")
    assert checked.code == 0, checked
    assert f"warning: {HOLDS}" in checked.out
    said = taken.catch_up()
    assert (said.code, said.out.count(HOLDS)) == (0, 1), said
    taken.assert_equal()
    assert taken.rows("what_there_is") == taken.rows("items")
    taken.more = '[[table]]\nname = "public.items"'
    assert HOLDS not in taken.pgetl("check").out
    taken.pgetl("reset", "public.items").assert_well()
    taken.assert_nothing_lost()


def test_it_is_replaced_if_somebody_says_so_of_all(taken: PipelineUnderTest) -> None:
    taken.destination_options = 'existing = "replace"'
    taken.assert_nothing_lost()


def test_an_empty_table_is_filled(taken: PipelineUnderTest) -> None:
    """It was made for that: with columns and indexes of somebody's choice, which stay."""
    taken.destination.execute("truncate items")
    taken.destination.execute("alter table items add noted timestamptz")
    taken.assert_nothing_lost()
    assert taken.destination.execute("select count(*) from items where noted is null")[0] != (0,)


def test_rows_that_come_while_it_is_copied_are_not_replaced_either(shop: PipelineUnderTest) -> None:
    """Nothing was there when the copy began; it looks again when it is published, under the lock."""
    shop.declared, shop.tables = ("public.items",), (ITEMS,)
    shop.destination.execute(MADE_BESIDE_STAGING)
    said = shop.catch_up()
    assert said.code == 4, said
    assert f"{HOLDS} {REMEDY} Then roll the table back." in said.out + said.err
    assert shop.phases() == {"public.items": "Errored"}
    assert shop.destination.execute("select * from items order by id") == THEIRS
    shop.destination.execute("drop event trigger theirs; drop table items")
    shop.pgetl("rollback", "public.items").assert_well()
    shop.assert_nothing_lost()


# Somebody makes a table of items at the very moment at which the copy makes its staging.
MADE_BESIDE_STAGING = """
create function make_items() returns event_trigger language plpgsql as $$ begin
    if exists (select from pg_event_trigger_ddl_commands() where schema_name = 'pgetl_staging')
       and to_regclass('public.items') is null then
        create table public.items (id int primary key, what text);
        insert into public.items values (1, 'theirs'), (7, 'theirs, too');
    end if;
end $$;
create event trigger theirs on ddl_command_end when tag in ('CREATE TABLE') execute function make_items();
alter event trigger theirs enable always;
"""


def test_a_table_that_was_made_anew_says_how_to_take_it_back(followed: PipelineUnderTest) -> None:
    """As by a restore from a dump: a reset alone would end every run, for a copy replaces no rows of others."""
    followed.destination.execute("create table anew as table items; drop table items; alter table anew rename to items")
    said = followed.catch_up()
    assert (said.code, REMEDY in said.complaint) == (4, True), said
    followed.pgetl("reset", "public.items").assert_well()
    followed.declared = ("public.orders",)
    followed.more = '[[table]]\nname = "public.items"\nexisting = "replace"'
    assert followed.catch_up().code == 0
    followed.assert_equal()


def test_what_was_destroyed_can_begin_anew(followed: PipelineUnderTest) -> None:
    """It keeps the data, and knows it again."""
    followed.pgetl("destroy", "--yes").assert_well()
    assert followed.rows("items") == 50
    followed.pgetl("check").assert_well()
    followed.assert_nothing_lost()


def test_two_pipelines_do_not_take_a_table_from_each_other(followed: PipelineUnderTest) -> None:
    """Not the one that comes later; and not the one that was there, once it was replaced."""
    wrote = "public.items in the destination holds rows that pipeline {} wrote: a copy would replace them."
    before = followed.destination.execute("select * from items order by id")
    followed.id = "other"
    said = followed.catch_up()
    assert said.code == 3
    assert wrote.format("shop") in said.err
    assert followed.destination.execute("select * from items order by id") == before
    followed.destination_options = 'existing = "replace"'
    assert followed.catch_up().code == 0
    followed.assert_equal()
    followed.id, followed.destination_options = "shop", ""
    followed.pgetl("reset", "public.items").assert_well()
    said = followed.catch_up()
    assert said.code == 3
    assert wrote.format("other") in said.err


def test_a_place_that_is_taken_is_refused_to_a_table_that_moves(taken: PipelineUnderTest) -> None:
    """It stays where it is, and followed, until there is room."""
    taken.destination.execute("alter table items rename to items_of_theirs")
    taken.catch_up().assert_well()
    taken.declared = ("public.orders",)
    taken.more = '[[table]]\nname = "public.items"\ndestination = "public.items_of_theirs"'
    said = taken.catch_up()
    assert said.code == 3
    assert "public.items_of_theirs in the destination holds rows that pgetl did not write" in said.complaint
    assert taken.phases()["public.items"] == "Ready"
    taken.declared, taken.more = ("public.orders", "public.items"), ""
    taken.assert_nothing_lost()


def test_a_table_is_never_copied_onto_itself(shop: PipelineUnderTest) -> None:
    """Whatever is said of replacing, and although another name of the server makes the URIs differ."""
    shop.environment["PGETL_DESTINATION_URI"] = shop.source.uri.replace("127.0.0.1", "localhost")
    shop.destination_options = 'existing = "replace"'
    itself = "public.items in the destination is the source's own table: both URIs lead to the same database."
    before = shop.source.execute("select xmin::text, * from items order by id")
    assert shop.pgetl("check").out.count(itself) == 1
    for verb in (("check",), ("run", "--until", "caught-up"), ("copy",)):
        said = shop.pgetl(*verb)
        assert (said.code, itself in said.out + said.err) == (3, True), said
    assert shop.source.execute("select xmin::text, * from items order by id") == before


def test_a_table_can_be_copied_within_its_database(shop: PipelineUnderTest) -> None:
    shop.environment["PGETL_DESTINATION_URI"] = shop.source.uri
    shop.declared = ()
    shop.more = '[[table]]\nname = "public.items"\ndestination = "replica.items"'
    shop.catch_up().assert_well()
    assert shop.source.execute("select * from replica.items except select * from items") == []
    assert shop.source.execute("select count(*) from replica.items") == [(50,)]


def test_rows_that_others_have_taken_away(shop: PipelineUnderTest) -> None:
    """The first change that finds none proves that the table differs; it is told once, with the remedy."""
    with shop.follow() as run:
        shop.destination.execute("delete from items where id in (1, 2)")
        shop.source.execute("update items set what = 'first' where id = 1")
        run.until_said("Changes of public.items found no row in the destination: others have changed it there")
        run.until_said("pgetl reset")
        shop.source.execute("update items set what = 'second' where id = 2")
        shop.change_something()
        run.until(shop.arrives("select 1 from items where what = 'later'"), "others went on")
        said = run.stop()
    assert (said.out + said.err).count("found no row in the destination") == 1
    shop.pgetl("reset", "public.items").assert_well()
    shop.catch_up().assert_well()
    shop.assert_nothing_lost()
