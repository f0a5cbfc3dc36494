"""The publication: what is made of a declaration, what is refused, and that the source's applications never notice."""

from collections.abc import Sequence
from dataclasses import replace

import psycopg
import pytest

from airflow_provider_pgetl.engine.config.spec import DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.source.connecting import Connection, connect
from airflow_provider_pgetl.engine.source.matching import Candidate, match, read_candidates
from airflow_provider_pgetl.engine.source.publication import (
    drop_publications,
    prepare_publication,
    publication_names,
    try_publication,
)
from airflow_provider_pgetl.engine.source.published import Publication, read_publications
from airflow_provider_pgetl.engine.source.relations import read_relations
from airflow_provider_pgetl.testing.servers.postgres_servers import Database

INSTANCE = "a1b2c3"


def spec(*tables: str | TableSpec, manage: bool = True, publication: str = "") -> PipelineSpec:
    return PipelineSpec(
        "shop",
        tuple(TableSpec(one) if isinstance(one, str) else one for one in tables),
        SourceSpec("env:SOURCE", publication=publication, manage_publication=manage),
        DestinationSpec("memory"),
    )


def candidates(connection: Connection, of: PipelineSpec) -> tuple[Candidate, ...]:
    matching = match(of.tables, of.exclude, read_relations(connection))
    assert matching.findings == ()
    return read_candidates(connection, matching.matches)


def prepare(connection: Connection, of: PipelineSpec, instance: str = INSTANCE) -> tuple[Publication, ...]:
    return prepare_publication(connection, of, instance, candidates(connection, of))


def refused(connection: Connection, of: PipelineSpec) -> PgetlError:
    """The refusal of preparing, which trying finds as well, and after which nothing is left."""
    before = read_publications(connection, publication_names(of))
    with pytest.raises(PgetlError) as caught:
        prepare(connection, of)
    tried = try_publication(connection, of, INSTANCE, candidates(connection, of))
    assert next(one.problem for one in tried if one.severity == "error") == caught.value.message
    assert read_publications(connection, publication_names(of)) == before
    assert caught.value.kind is ErrorKind.PREFLIGHT
    return caught.value


def members(publication: Publication) -> list[str]:
    return [str(member.table) for member in publication.members.values()]


def memberships(publications: Sequence[Publication]) -> dict[str, int]:
    return {str(one.table): one.membership for each in publications for one in each.members.values()}


@pytest.fixture(autouse=True)
def tables(source: Database) -> None:
    source.execute(
        """create table a (id int primary key, region text, v text);
           create table b (id int primary key, v text);
           create table log (at timestamptz, line text);
           create table whole (v text); alter table whole replica identity full;
           insert into a values (1, 'eu', 'x'); insert into log values (now(), 'x'); insert into whole values ('x')"""
    )


def assert_applications_work(source: Database) -> None:
    for table in ("a", "b", "log", "whole"):
        column = "line" if table == "log" else "v"
        source.execute(f"update {table} set {column} = 'changed'")
        source.execute(f"delete from {table}")


# -- made -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source_server", [15, 16, 18], indirect=True)
def test_both_publications_are_made_and_stamped(connection: Connection, source: Database) -> None:
    main, inserts = prepare(connection, spec("public.a", "public.whole", TableSpec("public.log", insert_only=True)))
    assert (main.name, members(main)) == ("pgetl_shop", ["public.a", "public.whole"])
    assert main.actions == {"insert", "update", "delete", "truncate"}
    assert (inserts.name, members(inserts)) == ("pgetl_shop_inserts", ["public.log"])
    assert inserts.actions == {"insert", "truncate"}
    for one in (main, inserts):
        assert (one.comment, one.via_root) == ("pgetl shop a1b2c3", True)
        assert one.generated == (connection.info.server_version >= 180000)
    assert_applications_work(source)


def test_the_second_is_made_at_once_even_if_empty(connection: Connection) -> None:
    assert [one.name for one in prepare(connection, spec("public.a"))] == ["pgetl_shop", "pgetl_shop_inserts"]


@pytest.mark.parametrize("source_server", [15, 16, 18], indirect=True)
def test_preparing_again_changes_nothing(connection: Connection) -> None:
    of = spec(
        TableSpec("public.a", columns=("id", "v"), where="id > 5"),
        TableSpec("public.log", where="line <> 'noise'", insert_only=True),
        "public.b",
    )
    assert prepare(connection, of) == prepare(connection, of)


def test_tables_come_and_go_without_touching_the_others(connection: Connection) -> None:
    before = memberships(prepare(connection, spec("public.a", "public.b")))
    after = memberships(prepare(connection, spec("public.a", "public.whole")))
    assert after.keys() == {"public.a", "public.whole"}
    assert after["public.a"] == before["public.a"]


@pytest.mark.parametrize(
    "changed",
    [
        TableSpec("public.a", columns=("id",)),
        TableSpec("public.a", where="id > 6"),
        TableSpec("public.a", insert_only=True),
    ],
)
def test_a_changed_share_is_a_new_membership(connection: Connection, changed: TableSpec) -> None:
    first = spec(TableSpec("public.a", where="id > 5"), TableSpec("public.b", where="id > 5"))
    before = memberships(prepare(connection, first))
    second = spec(changed, TableSpec("public.b", where="id > 5"))
    after = memberships(prepare(connection, second))
    assert after["public.a"] != before["public.a"]
    assert after["public.b"] == before["public.b"]
    assert memberships(prepare(connection, first))["public.b"] == before["public.b"]


def test_options_that_somebody_changed_are_set_right(connection: Connection, source: Database) -> None:
    before = prepare(connection, spec("public.a"))
    source.execute("alter publication pgetl_shop set (publish = 'insert', publish_via_partition_root = false)")
    after = prepare(connection, spec("public.a"))
    assert list(after) == [replace(one, row=now.row) for one, now in zip(before, after, strict=True)]


def test_awkward_names(connection: Connection, source: Database) -> None:
    source.execute(
        'create schema "Odd ""Schema"; create table "Odd ""Schema"."select" ("Group" int primary key, "a%b" text)'
    )
    table = TableSpec('"Odd ""Schema".select', columns=("a%b", "Group"), where='"Group" % 2 = 0')
    of = PipelineSpec("shop", (table,), SourceSpec("env:S", publication='Pub "x"'), DestinationSpec("memory"))
    main, _ = prepare(connection, of)
    (member,) = main.members.values()
    assert (main.name, member.columns, member.filtered) == ('Pub "x"', ("Group", "a%b"), ("Group",))
    assert prepare(connection, of)[0] == main


def test_a_parent_is_published_without_the_tables_that_inherit_from_it(
    connection: Connection, source: Database
) -> None:
    source.execute("create table heir () inherits (b)")
    assert members(prepare(connection, spec("public.b"))[0]) == ["public.b"]


def test_trying_leaves_nothing(connection: Connection) -> None:
    of = spec("public.a", TableSpec("public.b", where="id > 1"))
    found = try_publication(connection, of, None, candidates(connection, of))
    assert [one for one in found if one.severity != "note"] == []
    assert read_publications(connection, publication_names(of)) == ()


# -- refused ----------------------------------------------------------------------------------------------------------


PARTITIONED = """
create table events (id int, v text, primary key (id)) partition by hash (id);
create table events_0 partition of events for values with (modulus 2, remainder 0);
create table events_1 partition of events for values with (modulus 2, remainder 1);
insert into events select i, 'x' from generate_series(1, 10) i;
"""
NO_IDENTITY = "has no usable replica identity"


@pytest.mark.parametrize(
    ("made", "table", "said"),
    [
        ("", "public.log", f"public.log {NO_IDENTITY}"),
        ("create table t (id int primary key deferrable)", "public.t", NO_IDENTITY),
        ("create table t (id int primary key); alter table t replica identity nothing", "public.t", NO_IDENTITY),
        ("create table t (id int not null unique)", "public.t", NO_IDENTITY),
        (
            """create table t (id int not null unique); alter table t replica identity using index t_id_key;
               alter table t drop constraint t_id_key""",
            "public.t",
            NO_IDENTITY,
        ),
        ("", TableSpec("public.a", columns=("v",)), "The column list of public.a leaves out id, by which rows are"),
        ("", TableSpec("public.whole", columns=("v",)), "replica identity full"),
        ("", TableSpec("public.a", columns=("id", "nothing")), "public.a has no column nothing"),
        ("", TableSpec("public.a", where="id >"), "syntax error"),
        ("", TableSpec("public.a", where="nothing > 1"), 'column "nothing" does not exist'),
        ("", TableSpec("public.a", where="random() > id"), "invalid publication WHERE expression"),
        (
            f"{PARTITIONED} alter table events_1 replica identity nothing",
            "public.events",
            f"public.events_1 {NO_IDENTITY}",
        ),
        (
            f"{PARTITIONED} alter table events_1 replica identity full; alter table events add w int",
            TableSpec("public.events", columns=("id", "v")),
            "public.events_1 has replica identity full",
        ),
        (
            f"""{PARTITIONED} alter table events alter v set not null; create unique index other on events_1 (v, id);
                alter table events_1 replica identity using index other""",
            "public.events",
            "public.events_1 has another replica identity",
        ),
    ],
)
def test_what_would_break_the_source_or_cannot_be_is_refused(
    connection: Connection, source: Database, made: str, table: str | TableSpec, said: str
) -> None:
    if made:
        source.execute(made)
    error = refused(connection, spec(table))
    assert said in error.message
    assert_applications_work(source)


def test_the_remedies(connection: Connection) -> None:
    remedy = refused(connection, spec("public.log")).remedy
    assert 'ALTER TABLE "public"."log" REPLICA IDENTITY FULL' in remedy
    assert "insert_only" in remedy
    assert refused(connection, spec(TableSpec("public.a", columns=("v",)))).remedy == "Add id to `columns`."


@pytest.mark.parametrize("source_server", [15, 16, 18], indirect=True)
@pytest.mark.parametrize("where", ["region = 'eu'", "id > 1 and v is not null"])
def test_a_row_filter_outside_of_the_identity(connection: Connection, source: Database, where: str) -> None:
    error = refused(connection, spec(TableSpec("public.a", where=where)))
    assert "outside of its replica identity" in error.message
    assert error.table == "public.a"
    assert_applications_work(source)


@pytest.mark.parametrize(
    "change", ["", "create unique index other on events_1 (id, v)", "alter table events_1 replica identity full"]
)
def test_a_partitioned_table_is_published_by_its_root(connection: Connection, source: Database, change: str) -> None:
    source.execute(PARTITIONED + change)
    assert members(prepare(connection, spec("public.events"))[0]) == ["public.events"]
    source.execute("update events set v = 'changed'; delete from events_0")


def test_what_is_refused_would_have_broken_applications(source: Database) -> None:
    """Why it is refused."""
    source.execute("create publication reckless for table log")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not have a replica identity"):
        source.execute("update log set line = 'x'")


@pytest.mark.parametrize(("columns", "full"), [((), True), (("id", "region"), False)])
def test_the_remedy_for_a_row_filter_is_not_refused_in_its_turn(
    connection: Connection, columns: tuple[str, ...], full: bool
) -> None:
    """Replica identity full rules out a list of columns."""
    error = refused(connection, spec(TableSpec("public.a", columns=columns, where="region = 'eu'")))
    assert ("REPLICA IDENTITY FULL" in error.remedy) is full
    assert ("a unique index with region as its replica identity" in error.remedy) is not full


@pytest.mark.parametrize(
    "table",
    [
        TableSpec("public.a", where="region = 'eu'", insert_only=True),
        TableSpec("public.whole", where="v = 'eu'"),
        TableSpec("public.a", where="id % 2 = 0"),
        TableSpec("public.a", columns=("v",), insert_only=True),
    ],
)
def test_row_filters_and_column_lists_that_do_no_harm(
    connection: Connection, source: Database, table: TableSpec
) -> None:
    prepare(connection, spec(table))
    assert_applications_work(source)


@pytest.mark.parametrize("source_server", [16, 18], indirect=True)
def test_a_generated_key_is_sent_from_18_on(connection: Connection, source: Database) -> None:
    source.execute("create table g (a int, id int generated always as (a) stored not null, primary key (id))")
    if source.server.major < 18:
        assert "generated column id" in refused(connection, spec("public.g")).message
        return
    source.execute("insert into g values (1)")
    prepare(connection, spec("public.g"))
    source.execute("update g set a = 2")


@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_an_identity_of_columns_that_are_computed_and_not_sent(connection: Connection, source: Database) -> None:
    """UPDATE fails at the source: "Replica identity must not contain unpublished generated columns"."""
    source.execute("create table v (a int, b int generated always as (a) virtual); insert into v values (1)")
    source.execute("create table s (a int, b int generated always as (a) stored); insert into s values (1)")
    source.execute("alter table v replica identity full; alter table s replica identity full")
    assert "generated column b, which is not published" in refused(connection, spec("public.v")).message
    prepare(connection, spec("public.s"))
    source.execute("update v set a = 2; update s set a = 2")
    drop_publications(connection, spec("public.s"), INSTANCE)
    source.execute("create publication mine for table s")
    assert "generated column b, which is not published" in refused(connection, unmanaged("public.s")).message
    source.execute("alter publication mine set (publish_generated_columns = stored)")
    prepare(connection, unmanaged("public.s"))
    source.execute("update s set a = 3")


# -- whose it is ------------------------------------------------------------------------------------------------------


def test_a_publication_of_another_state_store_is_not_touched(connection: Connection) -> None:
    prepare(connection, spec("public.a"), instance="ffffff")
    error = refused(connection, spec("public.a", "public.b"))
    assert "belongs to pipeline 'shop' of another state store (instance ffffff)" in error.message
    assert 'DROP PUBLICATION "pgetl_shop"' in error.remedy


def test_a_publication_of_somebody_else_is_not_touched(connection: Connection, source: Database) -> None:
    source.execute("create publication pgetl_shop for table a")
    error = refused(connection, spec("public.a"))
    assert "was not made for pipeline 'shop'" in error.message
    assert "manage_publication = false" in error.remedy


def test_only_our_own_are_dropped(connection: Connection, source: Database) -> None:
    of = spec("public.a")
    prepare(connection, of, instance="ffffff")
    assert drop_publications(connection, of, INSTANCE) == ()
    assert drop_publications(connection, of, "ffffff") == ("pgetl_shop", "pgetl_shop_inserts")
    assert drop_publications(connection, of, "ffffff") == ()
    source.execute("create publication mine for table a")
    assert drop_publications(connection, spec("public.a", manage=False, publication="mine"), INSTANCE) == ()


def test_a_role_without_privileges_is_told_what_to_grant(stranger: str) -> None:
    with connect(stranger, "pgetl test") as connection:
        of = spec("public.a")
        findings = try_publication(connection, of, INSTANCE, candidates(connection, of))
        role, database = connection.info.user, connection.info.dbname
    assert [one.problem.partition(" may")[0] for one in findings] == [f"The role {role}", "Only the owner of public.a"]
    assert f'GRANT CREATE ON DATABASE "{database}" TO "{role}"' in findings[0].remedy


def test_a_table_that_is_locked_makes_it_wait_in_bounds(
    connection: Connection, source: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_pgetl.engine.source.publication._LOCK_SECONDS", 1)
    of = spec("public.a")
    found = candidates(connection, of)
    with source.connect(autocommit=False) as locker:
        locker.execute("lock table a in share update exclusive mode")
        with pytest.raises(PgetlError, match="lock timeout") as caught:
            prepare_publication(connection, of, INSTANCE, found)
        assert caught.value.transient
        (warning,) = try_publication(connection, of, INSTANCE, found)
        assert warning.severity == "warning"


# -- used as it is ----------------------------------------------------------------------------------------------------


def unmanaged(*tables: str | TableSpec) -> PipelineSpec:
    return spec(*tables, manage=False, publication="mine")


@pytest.mark.parametrize("how", ["for table a, b", "for all tables", "for tables in schema public"])
def test_a_publication_that_covers_the_tables_is_used_as_it_is(
    connection: Connection, source: Database, how: str
) -> None:
    source.execute(f"create publication mine {how}")
    (used,) = prepare(connection, unmanaged("public.a", "public.b"))
    assert used.name == "mine"
    assert used.comment is None


@pytest.mark.parametrize(
    ("made", "declared", "said"),
    [
        ("", "public.a", "There is no publication mine"),
        ("create publication mine for table b", "public.a", "mine does not contain public.a"),
        ("create publication mine for table a with (publish = 'insert, delete')", "public.a", "does not send update"),
        ("create publication mine for table a", TableSpec("public.a", where="id > 1"), "is used as it is"),
        ("create publication mine for table a where (v = 'x')", "public.a", "outside of its replica identity"),
        ("create publication mine for table log", "public.log", "no usable replica identity"),
        (f"{PARTITIONED}; create publication mine for table events", "public.events", "the names of its partitions"),
    ],
)
def test_one_that_does_not_fit_is_refused(
    connection: Connection, source: Database, made: str, declared: str | TableSpec, said: str
) -> None:
    if made:
        source.execute(made)
    assert said in refused(connection, unmanaged(declared)).message


def test_one_that_sends_only_inserts_fits_insert_only_tables(connection: Connection, source: Database) -> None:
    source.execute("create publication mine for table log with (publish = 'insert, truncate')")
    (used,) = prepare(connection, unmanaged(TableSpec("public.log", insert_only=True)))
    assert used.actions == {"insert", "truncate"}
