"""What SQL did to a real server is what comes out of its stream: counted, in order, with every kind of row."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.wal.pgoutput import Commit, Keepalive
from airflow_provider_pgetl.engine.wal.replication_stream import ReplicationStream
from airflow_provider_pgetl.engine.wal.spool import Sealed
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.engine.wal.replication import (
    PUBLICATION,
    SLOT,
    Reader,
    connect,
    counted,
    create_slot,
    flushed,
    publish,
    read,
    rows_of,
    streaming,
)
from tests.engine.wal.tls_proxy import tls_proxy
from tests.waiting import until

pytestmark = [
    pytest.mark.servers,
    pytest.mark.parametrize("source_server", [15, 16, 18], indirect=True, ids=lambda major: f"pg{major}"),
]


@pytest.fixture
def source(databases: Databases) -> Database:
    """Two published tables, one that is not, and a slot."""
    database = databases.source
    database.execute("create table a (id int primary key, v text, big text)")
    database.execute("create table b (id int primary key, v text, big text)")
    database.execute("create table hidden (id int)")
    database.execute("alter table a alter big set storage external")
    publish(database, "table a, b")
    create_slot(database)
    return database


# -- rows -------------------------------------------------------------------------------------------------------------


class Workload:
    """Random transactions, many of them rolled back; counts the rows that SQL says were changed for good."""

    def __init__(self, source: Database, seed: int) -> None:
        self.choose = random.Random(seed)
        self.source = source
        self.expected: Counter[tuple[str, str]] = Counter()
        self.transactions = 0

    def run(self, transactions: int) -> None:
        with self.source.connect(autocommit=False) as connection:
            for _ in range(transactions):
                done = Counter[tuple[str, str]]()
                for _ in range(self.choose.randrange(1, 6)):
                    table, kind, statement = self._statement()
                    rows = connection.execute(statement.encode()).rowcount
                    done[table, kind] += 1 if kind == "T" else rows
                if self.choose.random() < 0.3:
                    connection.rollback()
                    continue
                connection.commit()
                published = +Counter({of: count for of, count in done.items() if of[0] != "hidden"})
                self.expected += published
                self.transactions += bool(published)

    def _statement(self) -> tuple[str, str, str]:
        table = self.choose.choice(["a", "b", "hidden"])
        low = self.choose.randrange(200)
        span = f"id between {low} and {low + self.choose.randrange(30)}"
        if self.choose.random() < 0.04:
            return table, "T", f"truncate {table}"
        if table == "hidden":
            return table, "I", f"insert into hidden select generate_series(1, {low})"
        insert = f"insert into {table} select g, 'v' from generate_series({low}, {low + 20}) g on conflict do nothing"
        update = f"update {table} set v = v || 'x' where {span}"
        move = f"update {table} set id = id + 1000 + (select coalesce(max(id), 0) from {table}) where {span}"
        delete = f"delete from {table} where {span}"
        kind, statement = self.choose.choice([("I", insert), ("U", update), ("U", move), ("D", delete)])
        return table, kind, statement


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_every_committed_change_comes_and_nothing_else(source: Database, binary: bool) -> None:
    workload = Workload(source, seed=source.server.major)
    workload.run(150)
    point = flushed(source)
    with streaming(source, binary=binary) as stream:
        reader = Reader(stream, chunk_bytes=2000)
        rows = rows_of(reader.read_to(point))
    assert counted(rows) == workload.expected
    assert sum(isinstance(event, Commit) for event in reader.events) >= workload.transactions
    positions = [(row.commit_lsn, row.ordinal) for row in rows]
    assert len(set(positions)) == len(positions)


def test_unowned_tables_are_skipped_and_positions_stay(source: Database) -> None:
    Workload(source, seed=7).run(60)
    everything = read(source)
    only_b = read(source, unowned=frozenset({"a"}))
    assert only_b == [row for row in everything if row.table.name == "b"]
    assert 0 < len(only_b) < len(everything)


def test_positions_are_the_same_after_a_reconnect_in_the_middle(source: Database) -> None:
    """Relations are described again, at other places, and take no ordinal."""
    Workload(source, seed=8).run(60)
    point = flushed(source)
    everything = read(source)
    commits = sorted({row.commit_lsn for row in everything})
    middle = Boundary(commits[len(commits) // 2])
    with streaming(source, start=middle) as stream:
        rest = rows_of(Reader(stream).read_to(point))
    assert rest == [row for row in everything if row.commit_lsn >= middle.lsn]


def test_text_and_binary_values(source: Database) -> None:
    source.execute("insert into a values (258, 'é', null)")
    (text,), (binary,) = read(source), read(source, binary=True)
    assert text.new == (b"258", "é".encode(), None)
    assert binary.new == (("b", b"\0\0\1\2"), ("b", "é".encode()), None)


def test_a_moved_key_names_the_old_one_and_leaves_large_values_out(source: Database) -> None:
    source.execute("insert into a values (1, 'v', repeat('x', 100000))")
    source.execute("update a set id = 2")
    source.execute("update a set v = 'w'")
    source.execute("delete from a")
    insert, move, update, delete = read(source)
    assert insert.new == (b"1", b"v", b"x" * 100_000)
    assert (move.marker, move.old, move.new) == ("K", (b"1", None, None), (b"2", b"v", "unchanged"))
    assert (update.marker, update.old, update.new) == ("", None, (b"2", b"w", "unchanged"))
    assert (delete.marker, delete.old, delete.new) == ("K", (b"2", None, None), None)


def test_replica_identity_full_sends_whole_old_rows(source: Database) -> None:
    source.execute("alter table a replica identity full")
    source.execute("insert into a values (1, 'v', repeat('x', 100000))")
    source.execute("update a set v = 'w'")
    source.execute("delete from a")
    _, update, delete = read(source)
    big = b"x" * 100_000
    assert (update.marker, update.old, update.new) == ("O", (b"1", b"v", big), (b"1", b"w", "unchanged"))
    assert (delete.marker, delete.old) == ("O", (b"1", b"w", big))


def test_a_column_added_within_a_transaction_parts_the_rows(source: Database) -> None:
    with source.connect(autocommit=False) as connection:
        connection.execute("insert into a values (1)")
        connection.execute("alter table a add column more int")
        connection.execute("insert into a values (2)")
    point = flushed(source)
    with streaming(source) as stream:
        reader = Reader(stream)
        steps = list(reader.read_to(point).steps)
    widths = [(len(step.relation.columns), len(step)) for step in steps if isinstance(step, Sealed)]
    assert widths == [(3, 1), (4, 1)]


def test_a_truncate_of_several_tables_is_one_change(source: Database) -> None:
    with source.connect(autocommit=False) as connection:
        connection.execute("insert into a values (1)")
        connection.execute("truncate a, b, hidden restart identity")
        connection.execute("insert into b values (1)")
    rows = read(source)
    assert [(row.table.name, row.kind, row.ordinal) for row in rows if row.kind != "T"] == [
        ("a", "I", 1),
        ("b", "I", 3),
    ]
    assert {(row.table.name, row.ordinal) for row in rows if row.kind == "T"} == {("a", 2), ("b", 2)}


def test_a_row_of_many_megabytes_comes_whole(source: Database) -> None:
    source.execute("insert into a select 1, 'v', string_agg(md5(g::text), '') from generate_series(1, 300000) g")
    (row,) = read(source)
    assert row.new is not None
    assert row.new[2] == b"".join(source.execute("select big::bytea from a")[0])


def test_awkward_publication_names(source: Database) -> None:
    publish(source, "table a", '"We""ird, n\'ame"')
    publish(source, "table b", '"Ü"')
    source.execute("insert into a values (1)")
    source.execute("insert into b values (2)")
    point = flushed(source)
    with streaming(source, publications=("We\"ird, n'ame", "Ü")) as stream:
        assert [row.table.name for row in rows_of(Reader(stream).read_to(point))] == ["a", "b"]


# -- keepalives and feedback ------------------------------------------------------------------------------------------


def test_transactions_that_do_not_concern_us_show_only_as_keepalives(source: Database) -> None:
    with streaming(source) as stream:
        source.execute("insert into hidden values (1)")
        with source.connect(autocommit=False) as connection:
            connection.execute("insert into a values (1)")
            connection.rollback()
        reader = Reader(stream)
        batch = reader.read_to(flushed(source))
    assert (len(batch.steps), batch.steps.rows) == (0, 0)
    # A server of 14 would tell of empty transactions; those tested here leave them out.
    assert all(isinstance(event, Keepalive) for event in reader.events)


def test_a_keepalive_comes_when_asked_for_and_does_not_ask_in_turn(source: Database) -> None:
    with streaming(source) as stream:
        reader = Reader(stream)
        reader.read_to(flushed(source))
        del reader.events[:]
        reader.read_to(flushed(source))
        assert not any(event.reply_requested for event in reader.events if isinstance(event, Keepalive))


def confirmed(source: Database) -> Boundary:
    return Boundary.parse(str(source.execute("select confirmed_flush_lsn from pg_replication_slots")[0][0]))


def test_feedback_confirms_and_never_goes_back(source: Database) -> None:
    source.execute("insert into a values (1)")
    with streaming(source) as stream:
        batch = Reader(stream).read_to(flushed(source))
        assert batch.last is not None
        stream.send_feedback(batch.last.end)
        until(lambda: confirmed(source) == batch.last.end, "the slot is confirmed")
        with pytest.raises(PgetlError, match="would go back"):
            stream.send_feedback(Boundary(batch.last.end.lsn - 1))
    assert read(source) == []


def test_what_was_not_confirmed_comes_again(source: Database) -> None:
    source.execute("insert into a values (1)")
    assert len(read(source)) == 1
    assert len(read(source)) == 1


def wake_until(stream: ReplicationStream, over: threading.Event) -> None:
    while not over.wait(0.1):
        stream.wake()


def test_receive_waits_no_longer_than_told_and_can_be_woken(source: Database) -> None:
    with streaming(source) as stream:
        Reader(stream).read_to(flushed(source))
        until(lambda: not stream.receive(0.3), "the stream falls silent")
        over = threading.Event()
        waking = threading.Thread(target=wake_until, args=(stream, over))
        waking.start()
        until(lambda: stream.receive(3600) == [], "it is woken")
        over.set()
        waking.join()
        stream.receive(0.01)
    stream.wake()


def test_the_servers_patience_is_known(source: Database) -> None:
    for setting, seconds in (("3s", 3.0), ("0", None)):
        source.execute(f"alter database {source.name} set wal_sender_timeout = '{setting}'")
        with streaming(source) as stream:
            assert stream.sender_timeout == seconds


# -- TLS --------------------------------------------------------------------------------------------------------------


def test_over_tls_everything_comes_at_once(source: Database, tmp_path: Path) -> None:
    """Messages of many sizes, so that they end anywhere in a record."""
    with tls_proxy(source.server.port, tmp_path) as port:
        connection = connect(source, port=str(port), sslmode="require")
        with ReplicationStream.start(connection, SLOT, (PUBLICATION,)) as stream:
            assert connection.ssl_in_use
            reader = Reader(stream)
            reader.read_to(flushed(source))
            for number in range(60):
                source.execute(f"insert into b select {number}, repeat('x', 14000 + {number} * 331)")
                assert len(rows_of(reader.read_to_commit())) == 1


# -- the end ----------------------------------------------------------------------------------------------------------


def test_after_close_the_slot_is_free_at_once(source: Database) -> None:
    for _ in range(20):
        with streaming(source) as stream:
            stream.receive(0.01)
            stream.close(timeout=60)
        assert source.execute("select active from pg_replication_slots") == [(False,)]
    stream.close()
    with pytest.raises(PgetlError, match="after its end"):
        stream.receive(0)
    with pytest.raises(PgetlError, match="after its end"):
        stream.send_feedback(Boundary(1))


def test_close_does_not_wait_for_a_server_that_does_not_listen(source: Database) -> None:
    """As one amid a large transaction."""
    with streaming(source) as stream:
        ((walsender,),) = source.execute("select active_pid from pg_replication_slots")
        os.kill(walsender, signal.SIGSTOP)
        try:
            stream.close(timeout=0.05)
        finally:
            os.kill(walsender, signal.SIGCONT)
    until(lambda: source.execute("select active from pg_replication_slots") == [(False,)], "the slot is free")


def test_another_encoding_is_refused(source: Database) -> None:
    with pytest.raises(PgetlError, match="LATIN1"):
        ReplicationStream.start(connect(source, client_encoding="LATIN1"), "s", ("p",))
