"""Tables as the publication sends them."""

import json

import pytest
from psycopg import pq

from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.source.catalog import PublishedTable, read_tables
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.range_reading import imported_snapshot
from airflow_provider_pgetl.engine.source.slots import create_slot
from airflow_provider_pgetl.testing.servers.postgres_servers import Database


def table(connection: Connection, name: str, schema: str = "public") -> PublishedTable:
    (one,) = read_tables(connection, ["p"], [TableName(schema, name)])
    return one


def column(connection: Connection, sql_type: str, source: Database) -> Column:
    source.execute(f"create table typed (id int primary key, c {sql_type})")
    source.execute("create publication p for table typed")
    return table(connection, "typed").schema.columns[1]


# -- columns and keys -------------------------------------------------------------------------------------------------


def test_columns_come_as_pgoutput_sends_them(connection: Connection, source: Database) -> None:
    source.execute(
        """create table orders (gone text, id bigint generated always as identity primary key,
           total numeric(10,2) not null, name varchar(20), code char(3), any_code bpchar, bits bit(4),
           at timestamp(3) with time zone, doubled int generated always as (1) stored)"""
    )
    source.execute("alter table orders drop column gone")
    source.execute("comment on table orders is 'What was sold'; comment on column orders.total is 'In euros'")
    source.execute("create publication p for table orders")

    published = table(connection, "orders")

    schema = published.schema
    assert [(one.name, one.sql_type) for one in schema.columns] == [
        ("id", "bigint"),
        ("total", "numeric(10,2)"),
        ("name", "character varying(20)"),
        ("code", "character(3)"),
        ("any_code", "bpchar"),
        ("bits", "bit(4)"),
        ("at", "timestamp(3) with time zone"),
    ]
    assert [one.type.name for one in schema.columns][4:6] == ["bpchar", '"bit"']
    assert (schema.columns[0].identity, schema.columns[1].not_null, schema.columns[1].comment) == (
        "a",
        True,
        "In euros",
    )
    assert (schema.key, schema.identity, schema.comment) == (("id",), "default", "What was sold")
    assert source.execute("select oid from pg_publication_rel") == [(published.membership,)]
    assert source.execute("select 'orders'::regclass::oid") == [(schema.relation,)]
    assert TableSchema.from_json(schema.as_json()) == schema


@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_generated_columns_are_sent_where_the_publication_says_so(connection: Connection, source: Database) -> None:
    source.execute(
        """create table t (id int primary key, stored int generated always as (id * 2) stored,
           virtual int generated always as (id * 3))"""
    )
    source.execute("create publication p for table t with (publish_generated_columns = stored)")
    source.execute("create publication listed for table t (id, stored)")
    assert table(connection, "t").schema.names == ("id", "stored")
    assert table(connection, "t").schema.columns[1].generated
    (listed,) = read_tables(connection, ["listed"], [TableName("public", "t")])
    assert listed.schema.names == ("id", "stored")


def test_column_lists_and_row_filters(connection: Connection, source: Database) -> None:
    source.execute('create table t (a int, id int primary key, "Region" text, b int)')
    source.execute("create publication p for table t (b, id) where (id > 5 and id <> 7)")
    published = table(connection, "t")
    assert published.schema.names == ("id", "b")
    assert published.row_filter == "((id > 5) AND (id <> 7))"


@pytest.mark.parametrize(
    ("how", "entry"),
    [
        ("for all tables", "select null"),
        (
            "for tables in schema public",
            "select e.oid::int8 + c.xmin::text::int8 from pg_publication_namespace e, pg_class c where relname = 't'",
        ),
        ("for table t", "select oid from pg_publication_rel"),
    ],
)
def test_a_table_s_membership_is_the_entry_by_which_it_is_published(
    connection: Connection, source: Database, how: str, entry: str
) -> None:
    source.execute("create table t (id int primary key)")
    source.execute(f"create publication p {how}")
    assert [(table(connection, "t").membership,)] == source.execute(entry)


def test_a_table_remembers_the_row_of_the_publication_that_sends_it(connection: Connection, source: Database) -> None:
    source.execute("create table t (id int primary key)")
    source.execute("create publication other; create publication p for table t")
    schema = table(connection, "t").schema
    assert [schema.sender] == source.execute(
        "select oid::int8, xmin::text::int8, pubowner::int8 from pg_publication where pubname = 'p'"
    )
    assert TableSchema.from_json(schema.as_json()) == schema
    assert TableSchema.from_json(json.loads(json.dumps(schema.as_json()))) == schema


@pytest.mark.parametrize(
    ("definition", "identity", "key"),
    [
        ("a int, b int, primary key (b, a)", "default", ("b", "a")),
        ("a int, b int not null, unique (b) include (a)", "using index t_b_a_key", ("b",)),
        ("a int primary key, b int", "full", ("a",)),
        ("a int, b int", "full", ()),
        ("a int primary key deferrable, b int", "full", ()),
        ("a int primary key, b int", "nothing", ()),
        ("a int, b int", "default", ()),
    ],
)
def test_rows_are_known_by(
    connection: Connection, source: Database, definition: str, identity: str, key: tuple[str, ...]
) -> None:
    source.execute(f"create table t ({definition})")
    source.execute(f"alter table t replica identity {identity}")
    source.execute("create publication p for table t")
    schema = table(connection, "t").schema
    assert schema.key == key
    assert schema.identity == ("index" if identity.startswith("using index") else identity)


AWKWARD = ['Weird "Name"', "select", "UPPER", "naïve_表", "a.b", "with space", "100%", "it's"]


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_names(connection: Connection, source: Database, name: str) -> None:
    of = TableName(name, name)
    quoted = Column(name, PgType(23, "integer"), "integer").sql
    source.execute(f"create schema {quoted}")
    source.execute(f"create table {of.sql} ({quoted} int primary key)")
    source.execute(f"create publication p for table {of.sql}")
    (published,) = read_tables(connection, ["p"], [of])
    assert (published.table, published.schema.names, published.schema.key) == (of, (name,), (name,))
    assert [leaf.name for leaf in published.leaves] == [of]


def test_what_is_not_there_or_not_published_is_named(connection: Connection, source: Database) -> None:
    source.execute("create table t (id int primary key)")
    source.execute("create publication p")
    with pytest.raises(PgetlError, match=r"public\.t is not in p") as caught:
        table(connection, "t")
    assert caught.value.table == "public.t"
    with pytest.raises(PgetlError, match=r"public\.gone does not exist"):
        table(connection, "gone")


# -- partitions -------------------------------------------------------------------------------------------------------


def test_a_partitioned_table_has_the_leaves_below_it(connection: Connection, source: Database) -> None:
    source.execute(
        """create table events (id int, year int, primary key (id, year)) partition by range (year);
           create table old partition of events for values from (0) to (2000);
           create table new partition of events for values from (2000) to (3000) partition by list (year);
           create table new_20 partition of new for values in (2020);
           create schema archive;
           create table archive.new_21 partition of new for values in (2021);
           insert into events select i, 2020 from generate_series(1, 5000) i;
           create publication p for table events with (publish_via_partition_root)"""
    )
    published = table(connection, "events")
    assert [str(leaf.name) for leaf in published.leaves] == ["archive.new_21", "public.new_20", "public.old"]
    (filled,) = [leaf for leaf in published.leaves if leaf.blocks]
    assert filled.name.name == "new_20"
    assert source.execute("select pg_relation_filenode('new_20'), pg_relation_size('new_20') / 8192") == [
        (filled.filenode, filled.blocks)
    ]
    assert published.size >= filled.size == filled.blocks * 8192


def test_inheriting_tables_are_tables_of_their_own(connection: Connection, source: Database) -> None:
    source.execute("create table parent (id int primary key); create table child (primary key (id)) inherits (parent)")
    source.execute("create publication p for table only parent")
    assert [str(leaf.name) for leaf in table(connection, "parent").leaves] == ["public.parent"]


def test_toast_counts_for_the_size(connection: Connection, source: Database) -> None:
    source.execute("create table t (id int primary key, long text); alter table t alter long set storage external")
    source.execute("insert into t select i, repeat('x', 1000000) from generate_series(1, 3) i")
    source.execute("create publication p for table t")
    (leaf,) = table(connection, "t").leaves
    assert leaf.blocks == 1
    assert leaf.size > 3_000_000


# -- the snapshot -----------------------------------------------------------------------------------------------------


def test_everything_is_read_as_it_was_in_the_snapshot(
    connection: Connection, replication: pq.abc.PGconn, source: Database
) -> None:
    source.execute("create table t (id int primary key, a int, b int)")
    source.execute("create publication p for table t (id, a)")
    slot = create_slot(replication, connection, f"s_{source.name}", export_snapshot=True)
    before = table(connection, "t")
    source.execute("alter publication p set table t (id, a, b)")
    source.execute("alter table t replica identity full")
    source.execute("alter table t add c int")
    source.execute("vacuum full t")
    with imported_snapshot(connection, slot.snapshot):
        then = table(connection, "t")
    after = table(connection, "t")
    assert then == before
    assert after.schema.names == ("id", "a", "b")
    assert after.membership != before.membership
    assert after.leaves[0].filenode != before.leaves[0].filenode


def test_a_partition_whose_changes_are_not_in_the_wal_is_refused(connection: Connection, source: Database) -> None:
    source.execute(
        """create table events (id int primary key) partition by range (id);
           create table old partition of events for values from (0) to (10);
           alter table old set unlogged;
           create publication p for table events with (publish_via_partition_root)"""
    )
    with pytest.raises(PgetlError, match=r"public\.old, part of public\.events, is unlogged or foreign") as refused:
        table(connection, "events")
    assert refused.value.table == "public.events"


# -- types ------------------------------------------------------------------------------------------------------------


def test_enum_labels_come_in_their_order(connection: Connection, source: Database) -> None:
    source.execute("create type mood as enum ('sad', 'happy'); alter type mood add value 'so-so' before 'happy'")
    of = column(connection, "mood", source).type
    assert (of.name, of.kind, of.labels) == ("public.mood", "enum", ("sad", "so-so", "happy"))
    oids = source.execute("select enumlabel::text, oid::int8 from pg_enum where enumtypid = 'mood'::regtype")
    assert dict(zip(of.labels, of.numbers, strict=True)) == dict(oids)
    assert of.portable


def test_a_domain_says_its_base_with_the_modifier(connection: Connection, source: Database) -> None:
    source.execute("create domain price as numeric(10,2) check (value >= 0); create domain sale as price")
    of = column(connection, "sale", source).type
    assert (of.name, of.kind) == ("public.sale", "domain")
    assert of.inner is not None
    assert of.inner.name == "public.price"
    assert of.root.oid == 1700
    assert (of.root.name, of.root.sql_type) == ("numeric", "numeric(10,2)")


def test_a_composite_is_resolved_down_to_its_fields(connection: Connection, source: Database) -> None:
    source.execute("create type mood as enum ('sad'); create type \"Pair\" as (x varchar(5), moods mood[], gone int)")
    source.execute('alter type "Pair" drop attribute gone')
    of = column(connection, '"Pair"[]', source).type
    assert (of.name, of.kind) == ('public."Pair"[]', "array")
    assert of.inner is not None
    assert of.inner.kind == "composite"
    (x, x_type), (moods, moods_type) = of.inner.fields
    assert of.inner.numbers == (1, 2)
    assert (x, x_type.name, x_type.sql_type) == ("x", "character varying", "character varying(5)")
    assert (moods, moods_type.kind, moods_type.inner and moods_type.inner.labels) == ("moods", "array", ("sad",))
    assert not of.portable


@pytest.mark.parametrize(
    ("name", "kind", "inner"),
    [
        ("int4range", "range", "integer"),
        ("int4multirange", "multirange", "integer"),
        ("numeric(5,1)[]", "array", "numeric"),
        ("point", "base", None),
        ('"char"', "base", None),
        ("name", "base", None),
        ("jsonb", "base", None),
        ("bpchar[]", "array", "bpchar"),
    ],
)
def test_built_in_types(connection: Connection, source: Database, name: str, kind: str, inner: str | None) -> None:
    one = column(connection, name, source)
    assert one.sql_type == name
    assert one.type.kind == kind
    assert (one.type.inner and one.type.inner.name) == inner
    assert one.type.portable


@pytest.mark.parametrize("name", ["aclitem", "aclitem[]", "guarded", "holding", "holding[]"])
def test_what_is_made_of_a_type_without_binary_form_has_none(
    connection: Connection, source: Database, name: str
) -> None:
    source.execute("create domain guarded as aclitem; create type holding as (a int, b aclitem)")
    of = column(connection, name, source).type
    assert not of.sendable
    assert not of.portable


def test_a_type_of_an_extension_names_it(connection: Connection, source: Database) -> None:
    source.execute("create extension vector")
    of = column(connection, "vector(3)", source)
    assert (of.sql_type, of.type.name, of.type.extension) == ("public.vector(3)", "public.vector", "vector")


@pytest.mark.parametrize("source_server", [15], indirect=True)
def test_hstore(connection: Connection, source: Database) -> None:
    source.execute("create schema tools; create extension hstore schema tools")
    of = column(connection, "tools.hstore[]", source)
    assert of.sql_type == "tools.hstore[]"
    assert of.type.inner is not None
    assert of.type.inner.extension == "hstore"
