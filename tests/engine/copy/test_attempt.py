"""A group's copy, from real sources into memory: what is copied, and what becomes of store, slot and staging."""

import threading
import time
from collections import Counter

import pytest

from airflow_provider_pgetl.engine.destinations.memory import MemoryDestination
from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.engine.model.phases import (
    Errored,
    FinishedCopy,
    RolledBack,
)
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import CopyProgressed, PhaseReached
from airflow_provider_pgetl.engine.model.tables import TableName
from tests.engine.copy.copies import BIG, EMPTY, SMALL, SOURCE, Copies, ids, public
from tests.engine.copy.meddling import Meddling, Witness

# -- what is copied ---------------------------------------------------------------------------------------------------


def test_tables_are_published_at_the_consistent_point(three: Copies, memory: MemoryDestination) -> None:
    result = three.copy(BIG, SMALL, EMPTY)

    assert result.exit_code == 0
    assert set(result.published) == {BIG, SMALL, EMPTY}
    assert ids(memory, BIG) == list(range(1, 5001))
    assert ids(memory, SMALL) == [1, 2]
    assert ids(memory, EMPTY) == []
    assert result.boundary is not None
    for table in (BIG, SMALL, EMPTY):
        assert three.phase(table) == FinishedCopy(result.boundary)
        assert memory.positions(three.id)[table].position == result.boundary
    assert three.slots() == {result.slot}
    assert three.store.live_attempts() == frozenset()


def test_the_store_knows_schema_place_and_identity(three: Copies) -> None:
    result = three.copy(SMALL)

    assert result.boundary is not None
    schema = three.store.schema(SMALL, result.boundary)
    assert schema is not None
    assert (schema.names, schema.key) == (("id",), ("id",))
    metadata = three.store.destination_metadata(SMALL)
    assert metadata is not None
    assert (metadata.destination, metadata.snapshot) == (SMALL, result.boundary)
    assert metadata.details == {"rows": 2, "bytes": 8192}, "one block of the heap"
    assert three.store.tables()[SMALL].relation == schema.relation


def test_a_table_may_have_another_name_in_the_destination(three: Copies, memory: MemoryDestination) -> None:
    there = TableName("copied", "little")
    three.register(SMALL)
    result = three.copy_as({SMALL: there})

    assert result.published == (SMALL,)
    assert ids(memory, there) == [1, 2]
    metadata = three.store.destination_metadata(SMALL)
    assert metadata is not None
    assert metadata.destination == there


def test_progress_is_told_range_by_range_and_phases_as_they_come(three: Copies) -> None:
    three.copy(BIG)

    told = [report for report in three.reports if isinstance(report, CopyProgressed)]
    assert len(told) > 3
    assert [one.rows for one in told] == sorted(one.rows for one in told)
    assert (told[0].rows, told[-1].rows, told[-1].bytes_done) == (0, 5000, told[-1].bytes_total)
    phases = [type(report.state.phase).__name__ for report in three.reports if isinstance(report, PhaseReached)]
    assert phases == ["DataSync", "FinishedCopy"]


def test_a_partitioned_table_is_copied_leaf_by_leaf_into_one(copies: Copies, memory: MemoryDestination) -> None:
    copies.source.execute("create table part (id int primary key, v text) partition by range (id)")
    copies.source.execute("create table part_low partition of part for values from (0) to (100)")
    copies.source.execute(
        "create table part_high partition of part for values from (100) to (1000) partition by hash (id)"
    )
    for remainder in (0, 1):
        copies.source.execute(
            f"create table part_high_{remainder} partition of part_high"
            f" for values with (modulus 2, remainder {remainder})"
        )
    copies.source.execute("insert into part select g, 'v' from generate_series(1, 500) g")
    copies.source.execute("create table without_leaves (id int primary key) partition by range (id)")
    copies.publish()

    result = copies.copy(public("part"), public("without_leaves"))

    assert set(result.published) == {public("part"), public("without_leaves")}
    assert ids(memory, public("part")) == list(range(1, 501))
    assert memory.rows(public("without_leaves")) == []


def test_only_what_is_published_is_copied(copies: Copies, memory: MemoryDestination) -> None:
    copies.source.execute("create table people (id int primary key, name text, secret text)")
    copies.source.execute("insert into people select g, 'n' || g, 's' from generate_series(1, 10) g")
    copies.publish("for table people (id, name) where (id > 7)")

    copies.copy(public("people"))

    assert ids(memory, public("people")) == [8, 9, 10]
    assert {frozenset(row) for row in memory.rows(public("people"))} == {frozenset({"id", "name"})}


def test_a_table_without_a_key_keeps_equal_rows_apart(copies: Copies, memory: MemoryDestination) -> None:
    copies.source.execute("create table log (line text)")
    copies.source.execute("alter table log replica identity full")
    copies.source.execute("insert into log select 'same' from generate_series(1, 3) union all select null")
    copies.publish()

    copies.copy(public("log"))

    assert Counter(row["line"] for row in memory.rows(public("log"))) == {b"same": 3, None: 1}


@pytest.mark.parametrize("name", ['Weird "Name"', "select", "ÜberTabelle", "a.b", "back\\slash", "100% 'sure'"])
def test_any_name_will_do(copies: Copies, memory: MemoryDestination, name: str) -> None:
    table = TableName(f"{name} schema"[:60], name)
    quoted = '"' + name.replace('"', '""') + '"'
    copies.source.execute('create schema "' + table.schema.replace('"', '""').replace("%", "%") + '"')
    copies.source.execute(f"create table {table.sql} ({quoted} int primary key)")
    copies.source.execute(f"insert into {table.sql} values (7)")
    copies.publish()

    result = copies.copy(table)

    assert result.published == (table,), result
    assert memory.rows(table) == [{name: b"7"}]


def test_the_copy_is_the_snapshot_whatever_is_written_meanwhile(three: Copies, memory: MemoryDestination) -> None:
    """Writers change every row, again and again, vacuumed now and then, before and while ranges are read."""
    stop = threading.Event()

    def write(rest: int) -> None:
        with three.source.connect() as connection:
            new = 100_000 + rest
            while not stop.is_set():
                connection.execute(f"update big set note = note || 'y' where id % 6 = 2 * (random() * 2)::int + {rest}")
                connection.execute(f"delete from big where id % 2 = {rest} and random() < 0.01")
                connection.execute(f"insert into big select g, 'new' from generate_series({new}, {new} + 20, 2) g")
                connection.execute("vacuum big")
                new += 22

    def let_them_write() -> None:
        before = three.source.execute("select sum(length(note)) from big")
        while three.source.execute("select sum(length(note)) from big") == before:
            time.sleep(0.01)

    writers = [threading.Thread(target=write, args=[rest]) for rest in range(2)]
    witness = Witness(["select id::text, note from big"], before=let_them_write)
    for writer in writers:
        writer.start()
    try:
        result = three.copy(BIG, runner=witness)
    finally:
        stop.set()
        for writer in writers:
            writer.join()

    assert result.published == (BIG,)
    copied = {(row["id"].decode(), row["note"].decode()) for row in memory.rows(BIG)}
    assert copied == set(witness.seen["select id::text, note from big"])


def test_a_copy_without_a_stream_keeps_no_slot(three: Copies) -> None:
    result = three.copy(BIG, SMALL, snapshot_only=True)

    assert set(three.phases().values()) == {"FinishedCopy"}
    assert (result.slot, three.slots()) == (None, set())


# -- one table fails --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rewrite", ["vacuum full big", "cluster big using big_pkey", "alter table big alter id type bigint"]
)
def test_a_rewritten_table_fails_alone_and_is_tried_again(
    three: Copies, memory: MemoryDestination, rewrite: str
) -> None:
    result = three.copy(BIG, SMALL, runner=Meddling(before=lambda: three.source.execute(rewrite)))

    assert result.published == (SMALL,)
    assert result.failed[BIG].kind is ErrorKind.TABLE_REWRITTEN
    assert result.exit_code == 4
    phase = three.phase(BIG)
    assert isinstance(phase, Errored)
    assert (phase.retry_policy.kind, phase.from_phase) == ("timed", "DataSync")
    assert phase.retry_policy.at is not None
    assert 0 < phase.retry_policy.at - time.time() < 60
    assert BIG not in memory.tables()
    assert three.staged() == []
    assert three.slots() == {result.slot}


def whole_from(copies: Copies, table: TableName) -> Boundary:
    phase = copies.phase(table)
    assert isinstance(phase, FinishedCopy), phase
    return phase.boundary


@pytest.mark.parametrize(
    "statement",
    [
        "truncate big, small restart identity cascade",
        "begin; insert into big values (-1, 'new'); truncate big; insert into big values (-2, 'new'); commit",
        "cluster big using big_pkey; truncate big",
        "set synchronous_commit = off; truncate big",
    ],
)
def test_a_table_truncated_meanwhile_is_published_and_whole_after_that(
    three: Copies, memory: MemoryDestination, statement: str
) -> None:
    """Its rows cannot be read any more, but the stream empties it anyway."""
    result = three.copy(BIG, SMALL, EMPTY, runner=Meddling(before=lambda: three.source.execute(statement)))

    assert set(result.published) == {BIG, SMALL, EMPTY}
    assert result.boundary is not None
    assert whole_from(three, BIG) > result.boundary
    assert whole_from(three, EMPTY) == result.boundary
    assert memory.positions(three.id)[BIG].position == result.boundary, "the catch-up applies what came before as well"
    assert ids(memory, BIG) == []
    assert three.slots() == {result.slot}
    ((confirmed,),) = three.source.execute(
        "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s", [result.slot]
    )
    assert confirmed == str(result.boundary), "the catch-up reads all of it again"


def test_ranges_read_before_a_truncate_are_kept(three: Copies, memory: MemoryDestination) -> None:
    truncate = {2: lambda: three.source.execute("truncate big")}
    result = three.copy(BIG, runner=Meddling(after=lambda seen: truncate.get(seen, lambda: None)()))

    assert result.published == (BIG,)
    assert 0 < len(ids(memory, BIG)) < 5000


def test_the_root_may_be_truncated_and_a_partition_alone_may_not(copies: Copies) -> None:
    """What is done to a partition is not sent where the root is published."""
    source = copies.source
    for name in ("root", "other"):
        source.execute(f"create table {name} (id int primary key) partition by range (id)")
        source.execute(f"create table {name}_1 partition of {name} for values from (0) to (1000)")
        source.execute(f"create table {name}_2 partition of {name} for values from (1000) to (2000)")
        source.execute(f"insert into {name} select generate_series(0, 1999)")
    copies.publish()
    root, other = public("root"), public("other")

    result = copies.copy(root, other, runner=Meddling(before=lambda: source.execute("truncate root; truncate other_1")))

    assert result.published == (root,)
    assert result.failed[other].kind is ErrorKind.TABLE_REWRITTEN


def test_a_truncate_that_the_publication_leaves_out_makes_no_table_whole(copies: Copies) -> None:
    copies.source.execute("create table t (id int primary key); insert into t values (1)")
    copies.source.execute("create publication p for table t with (publish = 'insert, update, delete')")
    table = public("t")

    result = copies.copy(table, runner=Meddling(before=lambda: copies.source.execute("truncate t")))

    assert result.failed[table].kind is ErrorKind.TABLE_REWRITTEN


def test_without_a_stream_a_truncate_makes_no_table_whole(three: Copies) -> None:
    truncate = Meddling(before=lambda: three.source.execute("truncate big"))

    assert set(three.copy(BIG, SMALL, runner=truncate, snapshot_only=True).failed) == {BIG}


def test_a_table_that_is_always_rewritten_is_left_to_a_person(three: Copies) -> None:
    """After a rollback it is tried as many times again."""
    kinds: list[ErrorKind] = []
    for _ in range(4):
        vacuum = Meddling(before=lambda: three.source.execute("vacuum full small"))
        kinds.append(three.copy(SMALL, runner=vacuum).failed[SMALL].kind)
        state = three.store.tables()[SMALL].state
        three.store.apply({SMALL: RolledBack(state.generation)})

    again, hopeless = ErrorKind.TABLE_REWRITTEN, ErrorKind.REWRITTEN_AGAIN
    assert kinds == [again, again, hopeless, again]


def test_a_table_dropped_meanwhile_fails_alone(three: Copies) -> None:
    result = three.copy(BIG, SMALL, runner=Meddling(before=lambda: three.source.execute("drop table big")))

    assert (result.published, set(result.failed)) == ((SMALL,), {BIG})


def test_a_table_that_is_not_published_fails_alone(copies: Copies) -> None:
    copies.source.execute("create table a (id int primary key)")
    copies.source.execute("create table b (id int primary key)")
    copies.publish("for table b")

    result = copies.copy(public("a"), public("b"))

    assert result.published == (public("b"),)
    assert "not in" in result.failed[public("a")].message


def test_a_table_that_may_not_be_read_fails_alone(three: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    server, user = three.source.server, f"reader_{three.id}"
    three.source.execute(f"create role {user} login replication password 'secret'")
    three.source.execute(f"grant select on small to {user}")
    monkeypatch.setenv(SOURCE, server.uri(three.source.name, user, "secret"))
    try:
        result = three.copy(BIG, SMALL)
    finally:
        three.source.execute(f"drop owned by {user}; drop role {user}")

    assert result.published == (SMALL,)
    assert result.failed[BIG].kind is ErrorKind.PRIVILEGE
    phase = three.phase(BIG)
    assert isinstance(phase, Errored)
    assert phase.retry_policy.kind == "manual"
    assert "secret" not in str(result)


def test_if_every_table_fails_no_slot_is_left(three: Copies) -> None:
    result = three.copy(BIG, runner=Meddling(before=lambda: three.source.execute("vacuum full big")))

    assert (result.slot, three.slots()) == (None, set())
