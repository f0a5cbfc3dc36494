"""Ranges read from a snapshot: every row once, the snapshot's rows and no others, or an error that says so."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import pq

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.source import range_reading
from airflow_provider_pgetl.engine.source.catalog import PublishedTable, read_tables
from airflow_provider_pgetl.engine.source.connecting import Connection, connect
from airflow_provider_pgetl.engine.source.range_reading import (
    CopyFormat,
    Range,
    copy_blocks,
    imported_snapshot,
    plan_ranges,
    range_query,
    read_range,
)
from airflow_provider_pgetl.engine.source.relations import Leaf
from airflow_provider_pgetl.engine.source.slots import CreatedSlot, create_slot
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.engine.source.conftest import drop_role
from tests.raising import raises


@dataclass
class Copy:
    """A planned copy of one table: its snapshot, its ranges, and who reads them."""

    source: Database
    connection: Connection
    slot: CreatedSlot
    published: PublishedTable
    ranges: Sequence[Range]

    def read(self, one: Range, copy_format: CopyFormat = "text") -> bytes:
        query = range_query(self.published.schema, one, copy_format, row_filter=self.published.row_filter)
        with imported_snapshot(self.connection, self.slot.snapshot):
            return b"".join(read_range(self.connection, self.published.table, one, query))

    def rows(self) -> list[bytes]:
        return sorted(line for one in self.ranges for line in self.read(one).splitlines())


Planner = Callable[..., Copy]


@pytest.fixture
def planned(connection: Connection, replication: pq.abc.PGconn, source: Database) -> Planner:
    def plan(name: str = "t", range_bytes: int = 64 << 10) -> Copy:
        slot = create_slot(replication, connection, f"s_{source.name}", export_snapshot=True)
        with imported_snapshot(connection, slot.snapshot):
            (published,) = read_tables(connection, ["p"], [TableName("public", name)])
        return Copy(source, connection, slot, published, plan_ranges(published.leaves, range_bytes))

    return plan


FILL = "create table t (id int primary key, v text); insert into t select i, md5(i::text) from generate_series(1, %d) i"


def expected(source: Database, query: str = "select * from t") -> list[bytes]:
    with (
        source.connect() as connection,
        connection.cursor() as cursor,
        cursor.copy(f"copy ({query}) to stdout") as copy,
    ):
        return sorted(bytes(row).rstrip(b"\n") for row in copy)


def test_ranges_together_are_the_table(planned: Planner, source: Database) -> None:
    source.execute(FILL % 20_000)
    source.execute("delete from t where id % 7 = 0; update t set v = 'changed' where id % 5 = 0")
    source.execute("create publication p for table t")
    copy = planned()
    assert len(copy.ranges) > 10
    assert copy.rows() == expected(source)


@pytest.mark.parametrize("vacuum", ["vacuum t", "vacuum (freeze) t", "vacuum (index_cleanup off, truncate on) t"])
def test_what_happens_after_the_snapshot_is_not_seen(planned: Planner, source: Database, vacuum: str) -> None:
    source.execute(FILL % 5000)
    source.execute("create publication p for table t")
    wanted = expected(source)
    copy = planned()
    source.execute("delete from t where id > 1000")
    source.execute("update t set v = 'later', id = -id")
    source.execute("insert into t select i, 'new' from generate_series(10000, 20000) i")
    source.execute(vacuum)
    assert copy.rows() == wanted


REWRITES = [
    "vacuum full t",
    "cluster t using t_pkey",
    "truncate t",
    "alter table t alter v type bytea using v::bytea",
    "alter table t alter id type bigint",
]


@pytest.mark.parametrize("rewrite", REWRITES)
@pytest.mark.parametrize("when", ["before planning", "after planning"])
def test_a_rewritten_table_is_an_error_and_never_fewer_rows(
    connection: Connection, replication: pq.abc.PGconn, source: Database, rewrite: str, when: str
) -> None:
    source.execute(FILL % 5000)
    source.execute("create publication p for table t")
    slot = create_slot(replication, connection, f"s_{source.name}", export_snapshot=True)
    if when == "before planning":
        source.execute(rewrite)
    with imported_snapshot(connection, slot.snapshot):
        (published,) = read_tables(connection, ["p"], [TableName("public", "t")])
    copy = Copy(source, connection, slot, published, plan_ranges(published.leaves, 64 << 10))
    if when == "after planning":
        source.execute(rewrite)
    for one in copy.ranges:
        with raises(ErrorKind.TABLE_REWRITTEN, "public.t", match=r"public\.t was rewritten after"):
            copy.read(one)


def test_without_the_check_rows_would_be_missing(planned: Planner, source: Database) -> None:
    """Why there is a check: the transaction sees the snapshot, and the file is another."""
    source.execute(FILL % 5000)
    source.execute("create publication p for table t")
    copy = planned()
    source.execute("alter table t alter v type bytea using v::bytea")
    with imported_snapshot(copy.connection, copy.slot.snapshot):
        assert copy.connection.execute("select count(*) from public.t").fetchone() == (0,)


def test_a_dropped_and_a_recreated_table_are_errors(planned: Planner, source: Database) -> None:
    source.execute(FILL % 10)
    source.execute("create publication p for table t")
    copy = planned()
    for statement in ("drop table t", FILL % 10):
        source.execute(statement)
        with pytest.raises(PgetlError, match="dropped, renamed or replaced"):
            copy.read(copy.ranges[0])


def test_a_truncate_that_is_rolled_back_did_nothing(planned: Planner, source: Database) -> None:
    source.execute(FILL % 5000)
    source.execute("create publication p for table t")
    copy = planned()
    with source.connect(autocommit=False) as session:
        session.execute("truncate t")
        session.rollback()
    assert copy.rows() == expected(source)


def test_a_table_that_is_being_read_cannot_be_rewritten(planned: Planner, source: Database) -> None:
    source.execute(FILL % 5000)
    source.execute("create publication p for table t")
    copy = planned()
    one = copy.ranges[0]
    with imported_snapshot(copy.connection, copy.slot.snapshot):
        blocks = read_range(copy.connection, copy.published.table, one, range_query(copy.published.schema, one, "text"))
        next(blocks)
        with source.connect() as rewriter:
            rewriter.execute("set lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                rewriter.execute("vacuum full t")
        blocks.close()


def test_leaves_of_a_partitioned_table(planned: Planner, source: Database) -> None:
    source.execute(
        """create table t (id int, v text, primary key (id)) partition by hash (id);
           create table t_0 (v text, dropped int, id int not null, primary key (id)); alter table t_0 drop dropped;
           alter table t attach partition t_0 for values with (modulus 2, remainder 0);
           create table t_1 partition of t for values with (modulus 2, remainder 1);
           insert into t select i, md5(i::text) from generate_series(1, 3000) i;
           create publication p for table t with (publish_via_partition_root)"""
    )
    copy = planned()
    assert {one.relation.name for one in copy.ranges} == {"t_0", "t_1"}
    assert copy.rows() == expected(source)


@pytest.mark.parametrize("source_server", [15, 16, 18], indirect=True)
def test_column_lists_and_row_filters_hold_for_the_copy(planned: Planner, source: Database) -> None:
    source.execute("""create table t ("Id" int primary key, gone text, v text, w int)""")
    source.execute("""insert into t select i, 'secret', md5(i::text), i from generate_series(1, 3000) i""")
    source.execute("""create publication p for table t ("Id", v) where ("Id" % 3 = 0 or "Id" < 10)""")
    copy = planned()
    assert copy.rows() == expected(source, """select "Id", v from t where "Id" % 3 = 0 or "Id" < 10""")


def test_an_empty_table_is_read_as_well(planned: Planner, source: Database) -> None:
    source.execute("create table t (id int primary key); create publication p for table t")
    copy = planned()
    assert copy.rows() == []
    assert copy.read(copy.ranges[0], "binary") == b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\xff\xff"


def test_only_the_parent_of_an_inheritance_is_read(planned: Planner, source: Database) -> None:
    source.execute("create table t (id int primary key); create table child () inherits (t)")
    source.execute("insert into t values (1); insert into child values (2)")
    source.execute("create publication p for table only t")
    assert planned().rows() == [b"1"]


def test_binary_carries_what_has_no_binary_form_as_its_text(planned: Planner, source: Database) -> None:
    source.execute("create type holding as (a int, b aclitem)")
    source.execute("create table t (id int primary key, who aclitem, h holding)")
    source.execute("insert into t values (1, 'postgres=r/postgres', row(null, null)), (2, null, null)")
    source.execute("create publication p for table t")
    copy = planned()
    first, second = binary_rows(copy.read(copy.ranges[0], "binary"))
    assert first == [struct.pack(">i", 1), b"postgres=r/postgres", b"(,)"]
    assert second == [struct.pack(">i", 2), None, None]


def binary_rows(data: bytes) -> list[list[bytes | None]]:
    rows, at = [], 19
    while (width := struct.unpack_from(">h", data, at)[0]) >= 0:
        at += 2
        row: list[bytes | None] = []
        for _ in range(width):
            (length,) = struct.unpack_from(">i", data, at)
            row.append(None if length < 0 else data[at + 4 : at + 4 + length])
            at += 4 + max(length, 0)
        rows.append(row)
    return rows


def test_pieces_hold_whole_rows_and_the_count_is_returned(connection: Connection) -> None:
    blocks = copy_blocks(connection, "copy (select i, repeat('x', i % 300) from generate_series(1, 9999) i) to stdout")
    pieces: list[bytes] = []
    counted = exhaust(blocks, pieces)
    assert counted == 9999
    assert len(pieces) > 5
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert sum(piece.count(b"\n") for piece in pieces) == 9999


def exhaust(blocks: Generator[bytes, None, int], pieces: list[bytes]) -> int:
    while True:
        try:
            pieces.append(next(blocks))
        except StopIteration as end:
            return int(end.value)


def test_csv_tells_null_from_nothing(connection: Connection) -> None:
    pieces = copy_blocks(connection, "copy (values (1, null, '')) to stdout (format csv, force_quote *)")
    assert b"".join(pieces) == b'"1",,""\n'


def test_who_reads_no_further_gets_the_session_back(connection: Connection) -> None:
    blocks = copy_blocks(connection, "copy (select generate_series(1, 100000000)) to stdout")
    next(blocks)
    blocks.close()
    assert connection.execute("select 1").fetchone() == (1,)


def test_a_session_left_in_the_middle_is_closed_and_the_first_error_is_the_one_told(connection: Connection) -> None:
    blocks = copy_blocks(connection, "copy (select generate_series(1, 100000000)) to stdout")
    with pytest.raises(ZeroDivisionError), imported_snapshot(connection, None):
        raise ZeroDivisionError(next(blocks))
    assert connection.closed
    blocks.close()


def test_closing_before_the_last_small_piece_is_taken_care_of(connection: Connection) -> None:
    blocks = copy_blocks(connection, "copy (values (1)) to stdout")
    next(blocks)
    blocks.close()
    assert connection.execute("select 1").fetchone() == (1,)


def test_an_error_amid_the_rows_names_the_table(connection: Connection) -> None:
    query = "copy (select 1 / (5000 - i) from generate_series(1, 9999) i) to stdout"
    with raises(ErrorKind.VALUE, "public.t", match=r"public\.t could not be read: division by zero"):
        list(copy_blocks(connection, query, "public.t"))
    assert connection.execute("select 1").fetchone() == (1,)


def test_a_connection_that_breaks_amid_the_rows_is_a_passing_trouble(source: Database) -> None:
    with connect(source.uri, "pgetl test copy") as connection:
        blocks = copy_blocks(connection, "copy (select generate_series(1, 100000000)) to stdout", "public.t")
        next(blocks)
        source.execute("select pg_terminate_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(PgetlError) as caught:
            list(blocks)
    assert caught.value.transient


def test_a_snapshot_dies_with_its_exporter(
    connection: Connection, replication: pq.abc.PGconn, source: Database
) -> None:
    slot = create_slot(replication, connection, f"s_{source.name}", export_snapshot=True)
    exporter = replication.backend_pid
    replication.finish()
    while source.execute("select 1 from pg_stat_activity where pid = %s", [exporter]):
        pass
    with (
        pytest.raises(PgetlError, match="exported it has ended") as caught,
        imported_snapshot(connection, slot.snapshot),
    ):
        pass
    assert caught.value.kind is ErrorKind.COPY_DIED


def test_other_threads_go_on_while_the_source_is_slow(connection: Connection) -> None:
    with ThreadPoolExecutor(1) as pool:
        slow = "copy (select i, pg_sleep(0.01) from generate_series(1, 50) i) to stdout"
        reading = pool.submit(lambda: list(copy_blocks(connection, slow)))
        turns = 0
        while not reading.done():
            turns += 1
    assert turns > 10_000


class TestAsAStranger:
    @pytest.fixture
    def reader(self, source: Database) -> Iterator[str]:
        name = f"reader_{source.name}"
        source.execute(f"create role {name} login password 'p'")
        yield source.server.uri(source.name, name, "p")
        drop_role(source.server, source.name, name)

    def test_select_on_the_table_is_enough(self, planned: Planner, source: Database, reader: str) -> None:
        source.execute("create table t (id int primary key, secret text); insert into t values (1, 'x')")
        source.execute("create publication p for table t (id)")
        source.execute(f"grant select on t to reader_{source.name}")
        copy = planned()
        with connect(reader, "pgetl test") as connection:
            copy.connection = connection
            assert copy.rows() == [b"1"]

    def test_row_security_is_an_error_not_a_subset(self, planned: Planner, source: Database, reader: str) -> None:
        source.execute("create table t (id int primary key); insert into t values (1), (2)")
        source.execute("alter table t enable row level security; create policy few on t using (id = 1)")
        source.execute(f"grant select on t to reader_{source.name}; create publication p for table t")
        copy = planned()
        with connect(reader, "pgetl test") as connection:
            copy.connection = connection
            with pytest.raises(PgetlError, match="row-level security") as caught:
                copy.rows()
        assert caught.value.kind is ErrorKind.PRIVILEGE


def test_a_session_that_ends_before_the_snapshot_is_imported_is_a_lost_connection(source: Database) -> None:
    with connect(source.uri, "pgetl test") as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        source.execute("select pg_terminate_backend(%s, 60000)", [connection.info.backend_pid])
        with pytest.raises(PgetlError, match="snapshot could not be read") as caught:
            range_reading._import(connection, "00000003-00000001-1")
    assert caught.value.kind is ErrorKind.CONNECTION


# -- Cutting tables into ranges. ---------------------------------------------------------------------------------------

INTEGER = PgType(23, "integer")
SECRETIVE = PgType(1033, "aclitem", sendable=False)
ORDERS = TableName("public", 'Weird "Name"')
SCHEMA = TableSchema(ORDERS, 1, (Column("Id", INTEGER, "integer"), Column("who", SECRETIVE, "aclitem")), ("Id",))

leaf_sizes = st.tuples(st.integers(0, 5000), st.integers(0, 1 << 20))


def leaf(number: int, blocks: int, toast: int = 0) -> Leaf:
    return Leaf(TableName("public", f"leaf{number:02}"), number, 1000 + number, blocks, blocks * 8192 + toast)


@given(st.lists(leaf_sizes, max_size=6), st.integers(8192, 1 << 24))
def test_every_block_is_in_exactly_one_range(sizes: list[tuple[int, int]], range_bytes: int) -> None:
    leaves = [leaf(number, blocks, toast) for number, (blocks, toast) in enumerate(sizes)]
    ranges = plan_ranges(leaves, range_bytes)
    for one in leaves:
        mine = [r for r in ranges if r.relation == one.name]
        assert mine[0].first_block == 0
        assert mine[-1].last_block is None
        for before, after in pairwise(mine):
            assert before.last_block is not None
            assert before.first_block <= before.last_block == after.first_block - 1
        assert {r.filenode for r in mine} == {one.filenode}
    assert [r.number for r in ranges] == list(range(len(ranges)))


@given(st.integers(1, 50_000), st.integers(0, 1 << 30), st.integers(1 << 16, 1 << 26))
def test_ranges_are_about_as_large_as_wanted(blocks: int, toast: int, range_bytes: int) -> None:
    one = leaf(1, blocks, toast)
    ranges = plan_ranges([one], range_bytes)
    per_block = one.size / blocks
    for r in ranges[:-1]:
        assert r.last_block is not None
        size = (r.last_block + 1 - r.first_block) * per_block
        assert size <= 2 * range_bytes + per_block


def test_the_largest_leaf_comes_first_and_an_empty_one_has_its_range() -> None:
    ranges = plan_ranges([leaf(1, 0), leaf(2, 10), leaf(3, 100)], 1 << 30)
    assert [r.relation.name for r in ranges] == ["leaf03", "leaf02", "leaf01"]


def test_toast_counts() -> None:
    assert len(plan_ranges([leaf(1, 100, toast=100 << 20)], 10 << 20)) == 10


def test_the_query_bounds_the_blocks_and_filters_the_rows() -> None:
    query = range_query(SCHEMA, Range(0, ORDERS, 1, 1, 5, 9), "text", row_filter="(region = 'eu'::text)")
    assert query == (
        'COPY (SELECT "Id", "who" FROM ONLY "public"."Weird ""Name""" '
        "WHERE ctid >= '(5,0)'::pg_catalog.tid AND ctid < '(10,0)'::pg_catalog.tid AND ((region = 'eu'::text))) "
        "TO STDOUT (FORMAT text)"
    )


def test_the_last_range_is_open() -> None:
    assert "ctid <" not in range_query(SCHEMA, Range(0, ORDERS, 1, 1, 5, None), "csv")


def test_in_binary_what_has_no_binary_form_goes_as_text() -> None:
    binary = range_query(SCHEMA, Range(0, ORDERS, 1, 1, 0, None), "binary")
    assert 'SELECT "Id", CASE' in binary
