"""A group's copy, from real sources into memory: what is copied, and what becomes of store, slot and staging."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyTable
from airflow_provider_pgetl.engine.copy.attempt import LocalCopy, Settings
from airflow_provider_pgetl.engine.copy.table_copy import Staging
from airflow_provider_pgetl.engine.destinations.memory import MemoryDestination, shared_storage
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import (
    CopyFinished,
    CopyStarted,
    Errored,
    Event,
    FinishedCopy,
    Refused,
    RolledBack,
    TableState,
)
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import CopyProgressed, PhaseReached, nobody
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing.servers.postgres_servers import Server
from tests.engine.copy.copies import SOURCE, Copies, public
from tests.engine.copy.meddling import Meddling, Witness

BIG, SMALL, EMPTY = public("big"), public("small"), public("empty")


@pytest.fixture
def three(copies: Copies) -> Copies:
    """A table of several ranges, one of a single range, one without a row."""
    copies.source.execute("create table big (id int primary key, note text)")
    copies.source.execute("insert into big select g, repeat('x', 100) from generate_series(1, 5000) g")
    copies.source.execute("create table small (id int primary key)")
    copies.source.execute("insert into small values (1), (2)")
    copies.source.execute("create table empty (id int primary key)")
    copies.publish()
    return copies


def ids(memory: MemoryDestination, table: TableName) -> list[int]:
    return sorted(int(row["id"]) for row in memory.rows(table))


def staged(copies: Copies) -> list[TableName]:
    return [table for pipeline, table, _ in shared_storage(copies.id).staging if pipeline == copies.id]


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
    copies.publish()

    result = copies.copy(public("part"))

    assert result.published == (public("part"),)
    assert ids(memory, public("part")) == list(range(1, 501))


def test_a_partitioned_table_without_leaves_is_empty(copies: Copies, memory: MemoryDestination) -> None:
    copies.source.execute("create table part (id int primary key) partition by range (id)")
    copies.publish()

    assert copies.copy(public("part")).published == (public("part"),)
    assert memory.rows(public("part")) == []


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
    assert staged(three) == []
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


def test_what_a_truncate_does_to_others_is_read_once_for_all(three: Copies) -> None:
    """Each table has a TRUNCATE of its own, and finds its own; one that was rewritten besides is copied again."""

    def meddle() -> None:
        for statement in ("truncate small", "vacuum full big", "truncate empty"):
            three.source.execute(statement)

    result = three.copy(BIG, SMALL, EMPTY, runner=Meddling(before=meddle))

    assert set(result.published) == {SMALL, EMPTY}
    assert set(result.failed) == {BIG}
    assert result.boundary is not None
    assert whole_from(three, EMPTY) > whole_from(three, SMALL) > result.boundary


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


def test_a_truncate_that_the_publication_leaves_out_helps_nobody(copies: Copies) -> None:
    copies.source.execute("create table t (id int primary key); insert into t values (1)")
    copies.source.execute("create publication p for table t with (publish = 'insert, update, delete')")
    table = public("t")

    result = copies.copy(table, runner=Meddling(before=lambda: copies.source.execute("truncate t")))

    assert result.failed[table].kind is ErrorKind.TABLE_REWRITTEN


def test_without_a_stream_a_truncate_makes_no_table_whole(three: Copies) -> None:
    truncate = Meddling(before=lambda: three.source.execute("truncate big"))

    assert set(three.copy(BIG, SMALL, runner=truncate, snapshot_only=True).failed) == {BIG}


def test_a_table_that_is_always_rewritten_is_left_to_a_person(three: Copies) -> None:
    """Not copied for ever; after a rollback it has as many chances again."""
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


# -- the attempt ends early -------------------------------------------------------------------------------------------


def test_a_superseded_attempt_publishes_nothing_and_leaves_nothing(three: Copies, memory: MemoryDestination) -> None:
    """The store takes it for dead though it lives, and a second attempt begins and ends: what that published stays."""
    second = []

    def overtake() -> None:
        for attempt in three.store.live_attempts():
            three.store.end_attempt(attempt)
        three.source.execute("insert into small values (3)")
        second.append(three.copy(BIG, SMALL))

    result = three.copy(BIG, SMALL, runner=Meddling(before=overtake))

    assert (result.published, result.failed) == ((), {})
    assert set(result.left_out) == {BIG, SMALL}
    assert ids(memory, SMALL) == [1, 2, 3]
    assert memory.positions(three.id)[SMALL].position == second[0].boundary
    assert three.slots() == {second[0].slot}
    assert staged(three) == []


def test_a_table_rolled_back_meanwhile_is_left_out(three: Copies, memory: MemoryDestination) -> None:
    def roll_back() -> None:
        three.store.apply({BIG: RolledBack(three.store.tables()[BIG].state.generation)})

    result = three.copy(BIG, SMALL, runner=Meddling(before=roll_back))

    assert (result.published, set(result.left_out)) == ((SMALL,), {BIG})
    assert three.phases()[BIG] == "Init"
    assert BIG not in memory.tables()


def test_an_attempt_given_up_for_dead_publishes_nothing(three: Copies, memory: MemoryDestination) -> None:
    def give_up() -> None:
        (attempt,) = three.store.live_attempts()
        three.store.end_attempt(attempt)
        while any(thread.name == f"pgetl copy {attempt} heartbeat" for thread in threading.enumerate()):
            time.sleep(0.01)

    result = three.copy(BIG, SMALL, runner=Meddling(before=give_up), settings=Settings(attempt_ttl=4.0))

    assert result.published == ()
    assert "given up for dead" in result.left_out[BIG]
    assert memory.tables() == frozenset()
    assert staged(three) == []
    assert three.slots() == set()
    assert set(three.phases().values()) == {"DataSync"}


def test_asked_to_stop_it_stops_and_the_next_attempt_copies_all(three: Copies, memory: MemoryDestination) -> None:
    stop = threading.Event()
    stopped = three.copy(BIG, SMALL, runner=Meddling(after=lambda n: n == 2 and stop.set()), stop=stop)

    assert (stopped.published, stopped.exit_code, three.slots(), staged(three)) == ((), 0, set(), [])
    assert set(three.phases().values()) == {"DataSync"}
    assert set(three.copy(BIG, SMALL).published) == {BIG, SMALL}
    assert ids(memory, BIG) == list(range(1, 5001))


def test_tables_published_before_the_end_keep_the_slot(three: Copies) -> None:
    """The smallest come first here, so that the end finds one published and one not."""
    stop = threading.Event()

    def stop_after_small(ranges: int) -> None:
        if ranges == 1:
            stop.set()

    result = three.copy(BIG, SMALL, runner=Meddling(after=stop_after_small, order=lambda task: task.size), stop=stop)

    assert (result.published, set(result.left_out)) == ((SMALL,), {BIG})
    assert three.phases()[SMALL] == "FinishedCopy"
    assert three.slots() == {result.slot}


def test_a_table_that_is_rolled_back_before_its_copy_is_known_to_be_recorded_keeps_the_slot(
    three: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_each = three.store.apply_each
    lost: list[TableName] = []

    def lose_the_answer(events: Mapping[TableName, Event]) -> Mapping[TableName, TableState | Refused]:
        answer = apply_each(events)
        if isinstance(events.get(SMALL), CopyFinished) and not lost:
            lost.append(SMALL)
            three.store.apply({SMALL: RolledBack(three.store.tables()[SMALL].state.generation, slot_alive=True)})
            raise PgetlError(ErrorKind.STORE, "The answer was lost.")
        return answer

    monkeypatch.setattr(three.store, "apply_each", lose_the_answer)
    result = three.copy(SMALL)

    assert (lost, result.published) == ([SMALL], ())
    assert three.phases()[SMALL] == "FinishedCopy"
    assert len(three.slots()) == 1


def test_nobody_else_s_tables_are_touched(three: Copies, memory: MemoryDestination) -> None:
    three.copy(SMALL)
    before = three.phase(SMALL)

    result = three.copy(SMALL, public("unregistered_as_it_is_not_there"), register=False)

    assert result.published == ()
    assert set(result.left_out) == {SMALL, public("unregistered_as_it_is_not_there")}
    assert three.phase(SMALL) == before


def test_that_somebody_else_has_copied_a_table_meanwhile_is_no_news(three: Copies) -> None:
    three.copy(SMALL)
    three.reports.clear()

    result = three.copy(SMALL, register=False)

    assert result.left_out == {SMALL: "public.small was copied by another attempt."}
    assert three.reports == []


def test_a_later_attempt_keeps_its_table_from_an_earlier_one(three: Copies) -> None:
    three.register(SMALL)
    generation = three.store.tables()[SMALL].state.generation
    three.store.apply({SMALL: CopyStarted(generation, 1000)})

    assert three.copy(SMALL).published == ()
    assert three.slots() == set()


def test_open_transactions_are_named_when_the_slot_has_to_wait_too_long(three: Copies) -> None:
    with three.source.connect(autocommit=False, application_name="month end") as writer:
        writer.execute("insert into small values (99)")
        result = three.copy(BIG, SMALL, settings=Settings(slot_patience=0.5))

    assert result.failure is not None
    assert "month end" in result.failure.message
    assert three.slots() == set()
    phase = three.phase(BIG)
    assert isinstance(phase, Errored)
    assert phase.retry_policy.kind == "timed"


def test_the_snapshot_s_session_is_ended_by_someone(three: Copies) -> None:
    """Ranges that were not begun cannot be read any more: the attempt ends, to be tried again."""
    its = "from pg_stat_activity where datname = current_database() and application_name like '% snapshot'"

    def end_it() -> None:
        three.source.execute(f"select pg_terminate_backend(pid) {its}")
        while three.source.execute(f"select 1 {its}"):
            time.sleep(0.01)

    result = three.copy(BIG, SMALL, runner=Meddling(before=end_it))

    assert result.failure is not None
    assert "snapshot" in result.failure.message
    assert result.published == ()
    assert three.slots() == set()
    assert set(three.phases().values()) == {"Errored"}


def test_a_source_session_killed_in_a_range_costs_nothing(three: Copies, memory: MemoryDestination) -> None:
    """The range is read again by itself."""
    three.source.execute("insert into big select g, repeat('x', 100) from generate_series(5001, 60000) g")
    three.range_bytes = 2 << 20
    kill = (
        "select count(pg_terminate_backend(pid)) from pg_stat_activity"
        " where application_name = %s and query ilike 'copy%%'"
    )
    killed, copied = [], threading.Event()

    def end_readers() -> None:
        while sum(killed) < 2 and not copied.is_set():
            ((count,),) = three.source.execute(kill, [f"pgetl {three.id} c1"])
            killed.append(count)

    killer = threading.Thread(target=end_readers)
    result = three.copy(BIG, runner=Meddling(before=killer.start))
    copied.set()
    killer.join()

    assert result.published == (BIG,), result
    assert sum(killed) > 0
    assert ids(memory, BIG) == list(range(1, 60001))


def test_a_source_that_goes_away_ends_the_attempt(
    copies: Copies, memory: MemoryDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server.start(16) as server:
        copies.source = server.create_database("gone")
        monkeypatch.setenv(SOURCE, copies.source.uri)
        copies.source.execute("create table t as select generate_series(1, 5000) as id")
        copies.publish()
        result = copies.copy(public("t"), runner=Meddling(before=server.kill))

    assert result.failure is not None
    assert result.failure.kind is ErrorKind.CONNECTION
    assert result.exit_code == 1
    assert isinstance(copies.phase(public("t")), Errored)
    assert memory.tables() == frozenset()


def test_the_snapshot_is_let_go_before_the_last_table_is_published(
    three: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building the keys of a large table takes long, and the source cannot clean up behind a snapshot."""
    held: list[int] = []
    publish = Staging.publish

    def note_and_publish(staging: Staging, target: Target, ranges: int | None) -> None:
        query = "select count(*) from pg_stat_activity where application_name like %s and backend_type = 'walsender'"
        held.append(three.source.execute(query, [f"pgetl {three.id} % snapshot"])[0][0])
        publish(staging, target, ranges)

    monkeypatch.setattr(Staging, "publish", note_and_publish)

    assert len(three.copy(BIG, SMALL).published) == 2
    assert held[-1] == 0


# -- what nobody foresaw ----------------------------------------------------------------------------------------------


def test_a_defect_of_a_destination_ends_the_table_that_it_was_given(
    three: Copies, memory: MemoryDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = MemoryDestination.finish_copy

    def finish_all_but_small(self: MemoryDestination, target: Target, *given: Any) -> None:
        if target.schema.table == SMALL:
            raise KeyError("no such page")
        finish(self, target, *given)

    monkeypatch.setattr(MemoryDestination, "finish_copy", finish_all_but_small)
    result = three.copy(BIG, SMALL, EMPTY)
    assert set(result.published) == {BIG, EMPTY}
    assert result.failure is None
    phase = three.phase(SMALL)
    assert isinstance(phase, Errored)
    assert phase.reason == "The copy of public.small met KeyError: 'no such page'."
    assert phase.retry_policy.kind == "manual"


def test_a_defect_of_the_copy_itself_ends_all_its_tables(three: Copies) -> None:
    """They do not stay in DataSync, to be copied again and again without a word."""

    def fail() -> None:
        raise ZeroDivisionError("never")

    result = three.copy(BIG, SMALL, runner=Meddling(before=fail))
    assert result.failure is not None
    assert result.failure.kind is ErrorKind.INTERNAL
    assert "ZeroDivisionError: never" in result.failure.message
    for table in (BIG, SMALL):
        phase = three.phase(table)
        assert isinstance(phase, Errored)
        assert "ZeroDivisionError: never" in phase.reason
    assert three.slots() == set()
    assert three.store.live_attempts() == frozenset()


def test_a_thread_that_dies_of_a_defect_is_a_copy_that_failed(three: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise ZeroDivisionError("never")

    monkeypatch.setattr(three.store, "start_attempt", fail)
    result = LocalCopy(CopyJob(three.spec, (CopyTable(SMALL, SMALL),)), three.store, nobody).wait(10)
    assert result is not None
    assert result.failure is not None
    assert "ZeroDivisionError: never" in result.failure.message
