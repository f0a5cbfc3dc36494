"""Real tables, compared where they are: what is planted is found, in each destination, and nothing else ever is."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import deltalake
import psycopg
import pytest

from airflow_provider_pgetl.engine.config.spec import TableSpec
from airflow_provider_pgetl.engine.destinations.delta import history_reading
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.state.memory_store import MemoryStore
from airflow_provider_pgetl.engine.state.postgres_store import PostgresStore
from airflow_provider_pgetl.engine.verify import moment, source_rows, verifying
from airflow_provider_pgetl.engine.verify.moment import Patience
from airflow_provider_pgetl.engine.verify.server_sums import Sums
from airflow_provider_pgetl.testing.load import COMMITTED, Load, Session
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.engine.verify.replica import Replica, T, arrives, between_snapshots

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("source_server", [16], indirect=True)]

TABLE = """create table t (id int primary key, f float8, note text, code char(5), n numeric, price numeric(10, 2),
                           tags text[], b bytea, at timestamptz, j jsonb, u uuid, d date)"""
ROWS = """insert into t select i, 0.0, 'text', 'c', '1.0', 2.50, '{a,b}', '\\x00ff', now() + i * interval '1 hour',
                 '{"a": 1}', gen_random_uuid(), '2026-01-01'::date + i
          from generate_series(1, 300) i"""


# What does not depend on the place: in one of them, and in the other with the slow tests.
ONE_PLACE = pytest.mark.parametrize(
    "replica", [pytest.param("postgres", marks=pytest.mark.slow), "delta"], indirect=True
)


@pytest.fixture(params=["postgres", "delta"])
def replica(
    request: pytest.FixtureRequest, databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Replica:
    made = Replica(databases, request.param, tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def filled(replica: Replica) -> Replica:
    replica.source(TABLE, ROWS)
    replica.catch_up()
    return replica


# -- what is planted --------------------------------------------------------------------------------------------------


def test_every_kind_of_difference_is_found(filled: Replica) -> None:
    planted = [
        ("f", "'-0.0'", None, None),
        ("note", "'text '", "text", "'text '"),
        ("note", "''", "text", "''"),
        ("note", "null", "text", "NULL"),
        ("n", "'1.00'", "1.0", "1.00"),
        ("price", "2.51", "2.50", "2.51"),
        ("tags", "'{b,a}'", None, None),
        ("b", r"'\x00fe'", None, None),
    ]
    for at, (column, value, _, _) in enumerate(planted, 10):
        filled.plant(f"id = {at}", column, value)
    filled.remove(100)
    filled.add_again(101, 1000)
    found = filled.verify(shown=50)
    assert (found.verdict, found.missing, found.extra, found.changed) == ("different", 1, 1, len(planted))
    assert found.rows == 300
    shown = {(one.kind, one.key["id"]): one.columns for one in found.differences}
    assert set(shown) == {
        ("missing", "100"),
        ("extra", "1000"),
        *(("changed", str(at)) for at in range(10, 10 + len(planted))),
    }
    for at, (column, _, here, there) in enumerate(planted, 10):
        ((name, values),) = shown["changed", str(at)].items()
        assert name == column
        assert values == (here, there) if here is not None else values[0] != values[1]


def test_what_differs_is_all_counted_and_some_of_it_shown(filled: Replica) -> None:
    for at in range(1, 9):
        filled.remove(at)
    found = filled.verify(shown=3)
    assert (found.missing, len(found.differences)) == (8, 3)


def test_repair_has_what_differs_copied_again(filled: Replica) -> None:
    filled.remove(5)
    with filled.opened() as pipeline:
        found = pipeline.verify(repair=True)
    assert [table.name for table in found.repaired] == ["t"]
    filled.catch_up()
    assert filled.verify().verdict == "equal"


def test_of_a_sample_some_is_compared_and_nothing_else_told(filled: Replica) -> None:
    found = filled.verify(share=0.2)
    assert found.verdict == "equal"
    assert 20 < found.rows < 110


# -- what happens meanwhile -------------------------------------------------------------------------------------------


def test_rows_that_are_changed_between_the_snapshots_are_compared_again(
    filled: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among them one that differs in earnest, and one whose key moves."""
    filled.remove(7)

    def changes() -> None:
        filled.source(
            "update t set note = 'newer' where id between 1 and 20",
            "update t set id = id + 1000 where id between 30 and 35",
            "delete from t where id = 50",
            "insert into t (id, note) values (5000, 'new')",
        )
        arrives(filled)()

    between_snapshots(monkeypatch, changes)
    with filled.streamed():
        found = filled.verify()
    assert (found.verdict, found.missing, found.extra, found.changed, found.skipped) == ("different", 1, 0, 0, 0)
    assert found.rounds == 2
    assert found.differences[0].key["id"] == "7"


@ONE_PLACE
def test_rows_that_are_changed_in_every_round_are_told(filled: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    def changes() -> None:
        filled.source("update t set price = price + 1 where id <= 3")
        arrives(filled)()

    between_snapshots(monkeypatch, changes, changes)
    with filled.streamed():
        found = filled.verify(rounds=2)
    assert (found.verdict, found.skipped, found.rows, found.rounds) == ("equal", 3, 297, 2)
    assert "were not compared: they were changed meanwhile" in found.in_words()


@ONE_PLACE
def test_a_truncate_meanwhile_has_the_table_compared_again(filled: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    def truncates() -> None:
        filled.source("truncate t", "insert into t (id) values (1)")
        arrives(filled)()

    between_snapshots(monkeypatch, truncates)
    with filled.streamed():
        found = filled.verify()
    assert (found.verdict, found.rows, found.rounds) == ("equal", 1, 2)


def test_a_file_that_is_written_anew_has_the_table_compared_again(
    filled: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which the stream knows nothing."""
    between_snapshots(monkeypatch, lambda: filled.source("cluster t using t_pkey"))
    found = filled.verify()
    assert (found.verdict, found.rows, found.rounds) == ("equal", 300, 2)


@pytest.mark.parametrize("replica", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    "exchange", ["truncate t", "begin; alter table t rename to u; create table t (like u); commit"]
)
def test_a_destination_that_is_exchanged_while_it_is_read_is_read_again(
    filled: Replica, monkeypatch: pytest.MonkeyPatch, exchange: str
) -> None:
    """What its transaction would see of the file that is there then, is nothing: no row was ever missing."""
    original, begun = moment._OpeningMoment.changed, []

    def changed(*arguments: object) -> object:
        found = original(*arguments)  # type: ignore[arg-type]
        if not begun:
            begun.append(filled.databases.destination.execute(exchange))
        return found

    monkeypatch.setattr(moment._OpeningMoment, "changed", changed)
    found = filled.verify()
    assert (found.verdict, found.missing, found.rounds) == ("different", 300, 2)


@ONE_PLACE
def test_without_a_key_rows_are_a_bag(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    replica.source(
        "create table t (id int, note text)",
        "alter table t replica identity full",
        "insert into t select i % 5, 'n' from generate_series(1, 100) i",
    )
    replica.catch_up()
    assert replica.verify().verdict == "equal"

    def changes() -> None:
        replica.source("insert into t values (1, 'n'), (9, 'x')", "delete from t where id = 2")
        arrives(replica)()

    between_snapshots(monkeypatch, changes)
    with replica.streamed():
        found = replica.verify()
    assert (found.verdict, found.skipped, found.rows) == ("equal", 0, 102 - 20)
    replica.remove(3)
    found = replica.verify(shown=1)
    assert (found.verdict, found.missing, len(found.differences)) == ("different", 20, 1)


def test_under_load_nothing_is_found_but_what_was_planted(filled: Replica) -> None:
    """The load moves keys, and changes hot rows again and again."""
    with filled.streamed(), Load(filled.databases.source.uri, write, writers=2):
        for _ in range(3):
            found = filled.verify()
            assert found.verdict == "equal", found
        filled.source("insert into t (id, note) values (777777, 'here')")
        arrives(filled)()
        filled.remove(777777)
        found = filled.verify()
        assert (found.verdict, found.missing, found.extra, found.changed) == ("different", 1, 0, 0), found


def write(session: Session, dice: random.Random) -> str:
    first, moved = dice.randrange(300), dice.randrange(1000, 2300)
    statement = dice.choice(
        [
            f"update t set note = note || 'x' where id between {first} and {first + 5}",
            "update t set price = price + 1 where id = 1",
            f"delete from t where id = {first}",
            f"insert into t (id, note) values ({first}, 'again') on conflict do nothing",
            f"update t set id = {moved} where id = {first} and not exists (select from t where id = {moved})",
        ]
    )
    session.execute(statement.encode())
    session.commit()
    return COMMITTED


# -- who streams, and who does not ------------------------------------------------------------------------------------


def test_where_nobody_streams_what_is_missing_is_told_and_nothing_confirmed(filled: Replica) -> None:
    filled.source("update t set note = 'later' where id < 5", "delete from t where id = 9")
    query = "select slot_name::text, confirmed_flush_lsn::text, active from pg_replication_slots"
    before = filled.databases.source.execute(query)
    found = filled.verify()
    assert (found.verdict, found.skipped, found.rows, found.rounds) == ("equal", 5, 295, 1)
    assert "is not streamed" in found.in_words()
    assert filled.databases.source.execute(query) == before
    filled.remove(20)
    assert filled.verify().missing == 1
    filled.catch_up()
    assert (filled.verify().missing, filled.verify().skipped) == (1, 0)


@ONE_PLACE
def test_what_is_on_its_way_is_waited_for_but_not_for_ever(filled: Replica) -> None:
    """The first write comes at once, the next one later."""
    filled.min_interval = 6.0
    with filled.streamed():
        filled.source("update t set note = 'now' where id < 5")
        arrives(filled)()
        filled.source("update t set note = 'later' where id < 5")
        with pytest.raises(PgetlError, match=r"did not come to the destination within 0\.5 s") as late:
            filled.verify(patience=Patience(arrival=0.5))
        assert "pgetl status" in late.value.remedy
        found = filled.verify()
    assert (found.verdict, found.rows + found.skipped) == ("equal", 300)


def test_who_begins_to_stream_meanwhile_has_it_begin_anew(filled: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changes that were missing are there by then, and the slot has moved on."""
    filled.source("update t set note = 'later' where id < 5")
    between_snapshots(monkeypatch, filled.catch_up)
    found = filled.verify()
    assert (found.verdict, found.rows, found.skipped) == ("equal", 300, 0)


@pytest.mark.parametrize("replica", ["delta"], indirect=True)
def test_what_has_landed_is_merged_first(replica: Replica) -> None:
    replica.options = {"merge": "spark"}
    replica.source(TABLE, ROWS)
    replica.catch_up()
    assert replica.verify().verdict == "equal"
    replica.source("update t set note = 'landed' where id < 5")
    with replica.opened() as pipeline:
        pipeline.stream(until_caught_up=True, stop=threading.Event())
        with pytest.raises(PgetlError, match="not merged") as refused:
            pipeline.verify()
        assert "`pgetl merge FILE` first" in refused.value.remedy
        pipeline.merge(stop=threading.Event())
        assert pipeline.verify().is_proven


@pytest.mark.parametrize("replica", ["delta"], indirect=True)
def test_of_a_history_the_current_rows_are_compared(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large values that are not sent again are those of entries before, also where the key moves, twice in a row."""
    replica.options = {"mode": "history"}
    replica.source(
        "create table t (id int primary key, n int, big text)",
        "alter table t alter big set storage external",
        "insert into t select i, 0, repeat(md5(i::text), 100) from generate_series(1, 200) i",
    )
    replica.catch_up()
    replica.source(
        "update t set n = 1 where id <= 50",
        "update t set n = 2 where id <= 20",
        "update t set big = 'small' where id = 3",
        "update t set id = id + 1000 where id in (10, 11, 12)",
        "update t set id = id + 1000, n = 7 where id = 1010",
        "update t set n = 8 where id = 2010",
        "delete from t where id = 100",
        "delete from t where id = 101",
        "insert into t values (101, 9, null)",
    )
    replica.catch_up()
    found = replica.verify()
    assert (found.verdict, found.rows, found.skipped, found.rounds) == ("equal", 199, 0, 1)

    def changes() -> None:
        replica.source(
            "update t set n = 5 where id between 40 and 60",
            "update t set id = 3000 where id = 61",
            "update t set n = 6 where id in (1011, 1012)",
        )
        arrives(replica)()

    between_snapshots(monkeypatch, changes)
    with replica.streamed():
        found = replica.verify()
    assert (found.verdict, found.rows, found.skipped, found.rounds) == ("equal", 199, 0, 2)

    table = deltalake.DeltaTable(str(replica.place))
    table.delete("id = 3 and _pgetl_kind = 'update' and big = 'small'")
    table.delete("id = 100 and _pgetl_kind = 'delete'")
    table.delete("id = 150")
    found = replica.verify()
    assert (found.missing, found.extra, found.changed) == (1, 1, 1)
    assert {(one.kind, one.key["id"]) for one in found.differences} == {
        ("missing", "150"),
        ("extra", "100"),
        ("changed", "3"),
    }

    replica.source("truncate t", "insert into t values (1, 1, 'one')")
    replica.catch_up()
    assert (replica.verify().verdict, replica.verify().rows) == ("equal", 1)
    with replica.opened() as pipeline:
        pipeline.reset(T)
    replica.catch_up()
    assert (replica.verify().verdict, replica.verify().rows) == ("equal", 1)


def test_columns_that_the_source_computes_and_does_not_send_are_named(replica: Replica) -> None:
    replica.source(
        "create table t (id int primary key, g int generated always as (id * 2) stored)", "insert into t values (1)"
    )
    replica.catch_up()
    found = replica.verify()
    assert (found.verdict, found.rows, found.left_out) == ("equal", 1, ("g",))
    assert "without the columns g" in found.in_words()


def test_columns_of_which_the_destination_does_not_know_yet_are_named(replica: Replica) -> None:
    replica.source("create table t (id int primary key, note text)", "insert into t values (1, 'n')")
    replica.catch_up()
    replica.source("alter table t add x int default 5")
    found = replica.verify()
    assert (found.verdict, found.left_out) == ("equal", ("x",))


@pytest.mark.parametrize(
    "change",
    [
        "drop note, add note text default 'anew'",
        "drop id, add id serial primary key",
        "drop id, add i serial primary key",
    ],
)
def test_a_name_that_another_column_has_now_is_not_compared(replica: Replica, change: str) -> None:
    replica.source("create table t (id int primary key, note text)", "insert into t values (1, 'n')")
    replica.catch_up()
    replica.source(f"alter table t {change}")
    found = replica.verify()
    assert found.verdict == "not compared"
    assert "was altered at the source" in (found.why or "")


def test_no_savepoint_outlives_its_part(replica: Replica) -> None:
    """Else a large table has thousands, one within the other."""
    with replica.databases.source.connect(autocommit=False) as connection:
        for _ in range(2):
            with source_rows._bounded(connection, 10.0):
                connection.execute("select 1")
        with pytest.raises(psycopg.errors.InvalidSavepointSpecification):
            connection.execute("release savepoint part")


@pytest.mark.parametrize("replica", ["delta"], indirect=True)
def test_of_a_history_columns_without_values_in_old_entries_are_left_out(replica: Replica) -> None:
    replica.options = {"mode": "history"}
    replica.source(
        "create table t (id int primary key, n int)", "insert into t select i, i from generate_series(1, 9) i"
    )
    replica.catch_up()
    replica.source("alter table t add column later int default 7", "insert into t values (10, 10, 10)")
    replica.catch_up()
    found = replica.verify()
    assert (found.verdict, found.rows, found.left_out) == ("equal", 10, ("later",))
    assert "without the columns later" in found.in_words()
    replica.source("truncate t", "insert into t values (10, 10, 10)")
    replica.catch_up()
    found = replica.verify()
    assert (found.verdict, found.rows, found.left_out) == ("equal", 1, ())
    replica.source("alter table t rename id to number", "insert into t values (11, 11, 11)")
    replica.catch_up()
    found = replica.verify()
    assert found.verdict == "not compared"
    assert "number of the key has no values in entries from before" in (found.why or "")


@pytest.mark.parametrize("replica", ["delta"], indirect=True)
def test_of_a_history_without_a_key_nothing_can_be_proven(replica: Replica) -> None:
    replica.options = {"mode": "history"}
    replica.source("create table t (id int)", "alter table t replica identity full")
    replica.catch_up()
    found = replica.verify()
    assert (found.verdict, found.rounds) == ("not compared", 1)
    assert "has no key" in (found.why or "")


@pytest.mark.parametrize("replica", ["delta"], indirect=True)
def test_of_a_history_under_load_nothing_is_found_but_what_was_planted(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many buckets."""
    monkeypatch.setattr(history_reading, "_BUCKET_BYTES", 1000)
    replica.options = {"mode": "history"}
    replica.source(TABLE, ROWS)
    replica.catch_up()
    with replica.streamed(), Load(replica.databases.source.uri, write, writers=2):
        for _ in range(3):
            found = replica.verify()
            assert found.verdict == "equal", found
            assert found.rows > 200
        replica.source("insert into t (id, note) values (777777, 'here')")
        arrives(replica)()
        replica.remove(777777)
        found = replica.verify()
        assert (found.verdict, found.missing, found.extra, found.changed) == ("different", 1, 0, 0), found


@pytest.mark.parametrize("replica", ["memory"], indirect=True)
def test_a_memory_is_verified_too(replica: Replica) -> None:
    replica.source("create table t (id int primary key, note text)", "insert into t values (1, 'a'), (2, null)")
    with replica.opened() as pipeline:
        pipeline.run(until_caught_up=True, stop=threading.Event())
        assert pipeline.verify().is_proven
        replica.source("update t set note = '' where id = 2")
        assert pipeline.verify().tables[0].skipped == 1


def test_it_can_be_stopped(filled: Replica) -> None:
    asked = iter([False, False])
    with filled.opened() as pipeline:
        (found,) = pipeline.verify(stopped=lambda: next(asked, True)).tables
    assert (found.verdict, found.why) == ("not compared", "the verification was stopped before.")


def test_a_table_that_is_not_ready_is_not_compared(filled: Replica) -> None:
    with filled.opened() as pipeline:
        pipeline.reset(T)
    found = filled.verify()
    assert (found.verdict, found.why) == ("not compared", "it is Init, and not Ready.")


def test_a_table_that_is_taken_back_meanwhile_is_not_compared(filled: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    def reset() -> None:
        with filled.opened() as pipeline:
            pipeline.reset(T)

    between_snapshots(monkeypatch, reset)
    assert filled.verify().verdict == "not compared"


def test_of_inserts_alone_nothing_can_be_proven(replica: Replica) -> None:
    replica.tables = (TableSpec("public.t", insert_only=True),)
    replica.source("create table t (id int)", "insert into t values (1)")
    replica.catch_up()
    found = replica.verify()
    assert found.verdict == "not compared"
    assert "insert_only" in (found.why or "")


def test_what_is_chosen_is_compared_and_nothing_else(replica: Replica) -> None:
    """Some columns of some rows, of a table in partitions."""
    replica.tables = (TableSpec("public.t", columns=("id", "note"), where="id > 100"),)
    replica.source(
        "create table t (id int primary key, secret text, note text) partition by range (id)",
        "create table t1 partition of t for values from (0) to (150)",
        "create table t2 partition of t for values from (150) to (1000)",
        "insert into t select i, 'hidden', 'n' || i from generate_series(1, 300) i",
    )
    replica.catch_up()
    found = replica.verify()
    assert (found.verdict, found.rows) == ("equal", 200)
    replica.remove(200)
    assert replica.verify().missing == 1


def test_what_cannot_be_stored_is_told_all_the_same(filled: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise PgetlError(ErrorKind.STORE, "The state is away.")

    monkeypatch.setattr(MemoryStore, "record_verified", fail)
    monkeypatch.setattr(PostgresStore, "record_verified", fail)
    filled.remove(5)
    assert filled.verify().missing == 1


# -- what it leaves behind --------------------------------------------------------------------------------------------


def test_open_writers_are_waited_for_and_named(filled: Replica) -> None:
    before = filled.slots()
    with filled.databases.source.connect(application_name="a long job") as session:
        session.autocommit = False
        session.execute("insert into t (id) values (4000)")
        with pytest.raises(PgetlError, match="a long job"):
            filled.verify(patience=Patience(slot=0.5))
        session.rollback()
    assert filled.slots() == before


@pytest.mark.parametrize("failing", ["between", "reading"])
def test_no_slot_stays_and_nothing_is_locked_when_it_fails(
    filled: Replica, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    before = filled.slots()

    def fail(*_: object) -> None:
        raise PgetlError(ErrorKind.CONNECTION, "The network is down.")

    if failing == "between":
        between_snapshots(monkeypatch, fail)
    else:
        monkeypatch.setattr(verifying, "_digest", fail)
        monkeypatch.setattr(Sums, "add", fail)
    with pytest.raises(PgetlError, match="network"):
        filled.verify()
    assert filled.slots() == before
    filled.source("set lock_timeout = '5s'; alter table t add column later int")


def test_no_lock_outlives_a_part(filled: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever would alter the source's table, or truncate the destination's, waits for a part, not for the whole."""
    done = []

    def then_altered(original: Callable[..., None]) -> Callable[..., None]:
        def read(*arguments: object) -> None:
            original(*arguments)
            done.append(alter())

        return read

    def alter() -> bool:
        with filled.databases.source.connect() as session:
            try:
                session.execute("set lock_timeout = '5s'; lock table t in access exclusive mode")
            except psycopg.errors.LockNotAvailable:
                return False
        return True

    monkeypatch.setattr(verifying, "_digest", then_altered(verifying._digest))
    monkeypatch.setattr(Sums, "add", then_altered(Sums.add))
    assert filled.verify().verdict == "equal"
    assert True in done


def test_the_source_is_read_no_faster_than_it_may_be(filled: Replica) -> None:
    begun = time.monotonic()
    assert filled.verify(rate=150.0).verdict == "equal"
    assert time.monotonic() - begun > 1.5
