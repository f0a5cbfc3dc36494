"""How a stream fails to start or ends, and that each case is told from the others."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.wal.pgoutput import Feedback, Keepalive, decode
from airflow_provider_pgetl.engine.wal.replication_stream import ReplicationStream
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases, Server
from tests.engine.wal.replication import (
    PUBLICATION,
    SLOT,
    Reader,
    create_slot,
    flushed,
    publish,
    rows_of,
    streaming,
)
from tests.waiting import until

MAJORS = (15, 16, 18)
pytestmark = pytest.mark.servers
on_each_server = pytest.mark.parametrize("source_server", MAJORS, indirect=True, ids=lambda major: f"pg{major}")
each_major = pytest.mark.parametrize("major", MAJORS)


def prepared(database: Database) -> Database:
    database.execute("create table a (id int primary key, v text)")
    publish(database, "table a")
    create_slot(database)
    return database


@pytest.fixture
def source(databases: Databases) -> Database:
    return prepared(databases.source)


@contextmanager
def own_source(major: int, **settings: str | int) -> Iterator[Database]:
    """On a server of its own, to be stopped and reconfigured."""
    with Server.start(major, settings) as server:
        yield prepared(server.create_database("source"))


def start_error(database: Database, slot: str = SLOT) -> PgetlError:
    with pytest.raises(PgetlError) as failure, streaming(database, slot):
        pass
    return failure.value


def end_error(stream: ReplicationStream, seconds: float = 30) -> PgetlError:
    with pytest.raises(PgetlError) as failure:
        receive_for(stream, seconds)
    return failure.value


def receive_for(stream: ReplicationStream, seconds: float) -> None:
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        stream.receive(0.2)


# -- the start --------------------------------------------------------------------------------------------------------


@on_each_server
def test_a_slot_that_does_not_exist_is_lost(source: Database) -> None:
    error = start_error(source, "nobody's")
    assert error.kind == ErrorKind.SLOT_LOST
    assert "The replication slot nobody's does not exist." in error.message


@on_each_server
def test_a_slot_that_another_streams_from_is_in_use(source: Database) -> None:
    with streaming(source):
        error = start_error(source)
    assert error.kind == ErrorKind.SLOT_IN_USE
    assert SLOT in error.message


@on_each_server
def test_a_slot_of_another_kind_or_database_is_not_ours(source: Database, databases: Databases) -> None:
    source.execute("select pg_create_physical_replication_slot('physical')")
    elsewhere = databases.destination
    elsewhere.execute("select pg_create_logical_replication_slot('elsewhere', 'pgoutput')")
    try:
        for slot in ("physical", "elsewhere"):
            error = start_error(source, slot)
            assert error.kind == ErrorKind.SLOT_LOST
            assert "is not ours" in error.message
    finally:
        for slot in ("physical", "elsewhere"):
            elsewhere.execute("select pg_drop_replication_slot(%s)", [slot])


@each_major
def test_an_invalidated_slot_is_lost(major: int) -> None:
    with own_source(major, max_slot_wal_keep_size="1MB") as source:
        for _ in range(3):
            source.execute("insert into a select coalesce(max(id), 0) + 1 from a")
            source.execute("select pg_switch_wal()")
        source.execute("checkpoint")
        assert source.execute("select wal_status from pg_replication_slots") == [("lost",)]
        error = start_error(source)
    assert error.kind == ErrorKind.SLOT_LOST
    assert "was invalidated" in error.message


# -- amid the stream --------------------------------------------------------------------------------------------------


@on_each_server
def test_a_slot_dropped_underneath_breaks_the_connection_and_is_lost_when_we_return(source: Database) -> None:
    with streaming(source) as stream:
        stream.receive(0.1)
        source.execute("select pg_terminate_backend(active_pid) from pg_replication_slots")
        error = end_error(stream)
        assert error.kind == ErrorKind.CONNECTION
        assert "administrator command" in error.message
        assert end_error(stream) is error
    until(lambda: source.execute("select active from pg_replication_slots") == [(False,)], "the slot is free")
    source.execute("select pg_drop_replication_slot(%s)", [SLOT])
    assert start_error(source).kind == ErrorKind.SLOT_LOST


@on_each_server
@pytest.mark.parametrize("recreated", [False, True])
def test_changes_made_while_the_publication_was_away_are_not_passed_over(source: Database, recreated: bool) -> None:
    """From 18 on the server leaves them out with a warning, and its keepalives go on beyond them."""
    source.execute(f"alter database {source.name} set client_min_messages = error")
    source.execute(f"drop publication {PUBLICATION}")
    source.execute("insert into a values (1)")
    if recreated:
        publish(source, "table a")
    with streaming(source) as stream:
        error = end_error(stream)
    assert error.kind == ErrorKind.SLOT_LOST
    assert f"the publication {PUBLICATION} did not exist" in error.message


@on_each_server
def test_a_row_filter_that_fails_on_a_row_is_no_table_s_error(source: Database) -> None:
    """It fails at the source, at the same change again and again."""
    source.execute(f"drop publication {PUBLICATION}")
    publish(source, "table a where (100 / id > 1)")
    create_slot(source, "of_filtered")
    source.execute("insert into a values (0)")
    with streaming(source, "of_filtered") as stream:
        error = end_error(stream)
    assert error.kind == ErrorKind.PREFLIGHT
    assert "division by zero" in error.message
    assert "A row filter fails on a value" in error.remedy


@on_each_server
def test_a_publication_dropped_while_we_stream_is_noticed_with_the_next_change(source: Database) -> None:
    source.execute("insert into a values (1)")
    with streaming(source) as stream:
        assert Reader(stream).read_to(flushed(source)).steps.rows == 1
        source.execute(f"drop publication {PUBLICATION}")
        source.execute("insert into a values (2)")
        assert end_error(stream).kind == ErrorKind.SLOT_LOST


@each_major
def test_a_killed_server_breaks_the_connection(major: int) -> None:
    with own_source(major) as source, streaming(source) as stream:
        stream.receive(0.1)
        source.server.kill()
        assert end_error(stream).kind == ErrorKind.CONNECTION
        with pytest.raises(PgetlError, match="broke"):
            stream.send_feedback(START)


# -- patience on both sides -------------------------------------------------------------------------------------------


def answering(
    stream: ReplicationStream,
    seconds: float,
    boundary: Boundary | None = START,
    enough: Callable[[Feedback], bool] = lambda _: False,
) -> Feedback:
    """Receive and answer for so long, as a worker does; with `boundary` None confirm all that the server has sent."""
    feedback = Feedback(time.monotonic(), stream.sender_timeout)
    reached, give_up_at = START, time.monotonic() + seconds
    while (now := time.monotonic()) < give_up_at and not enough(feedback):
        confirmable = reached if boundary is None else boundary
        if feedback.due(now, confirmable):
            stream.send_feedback(confirmable)
            feedback.sent(now, confirmable)
        for payload in stream.receive(min(feedback.due_in(now, confirmable), give_up_at - now)):
            message = decode(payload)
            if isinstance(message, Keepalive):
                feedback.heard(time.monotonic(), message)
                reached = max(reached, message.position)
    return feedback


@on_each_server
def test_answers_keep_an_idle_connection_and_silence_loses_it(source: Database) -> None:
    source.execute(f"alter database {source.name} set wal_sender_timeout = '1s'")
    with streaming(source) as stream:
        assert answering(stream, 3).flooded_for(time.monotonic()) is None
        assert end_error(stream).kind == ErrorKind.CONNECTION


@each_major
def test_a_server_that_is_answered_stops_at_once(major: int) -> None:
    with own_source(major) as source, streaming(source) as stream:
        # Not our transaction, but it must be confirmed as well.
        source.execute("create table hidden as select 1")
        stopping = threading.Thread(target=source.server.stop, args=("fast",))
        stopping.start()
        with pytest.raises(PgetlError, match="shutting down") as failure:
            answering(stream, 60, None)
        stopping.join()
        assert failure.value.kind == ErrorKind.CONNECTION


@each_major
def test_a_server_that_waits_for_our_answer_floods_and_stops_when_we_leave(major: int) -> None:
    with own_source(major) as source, streaming(source) as stream:
        source.execute("create table hidden as select 1")
        answering(stream, 0.3)
        stopping = threading.Thread(target=source.server.stop, args=("fast",))
        stopping.start()
        feedback = answering(stream, 60, enough=lambda feedback: (feedback.flooded_for(time.monotonic()) or 0) > 1)
        assert feedback.flooded_for(time.monotonic()) is not None
        assert stopping.is_alive()
        stream.close(timeout=0.1)
        stopping.join(60)
        assert not stopping.is_alive()


@on_each_server
def test_feedback_does_not_block_on_a_server_that_does_not_read(source: Database) -> None:
    with streaming(source) as stream:
        reader = Reader(stream)
        reader.read_to(flushed(source))
        ((walsender,),) = source.execute("select active_pid from pg_replication_slots")
        os.kill(walsender, signal.SIGSTOP)
        try:
            while not stream._unflushed:
                stream.send_feedback(START)
            for _ in range(1000):
                stream.send_feedback(START)
            stream.receive(0.05)
        finally:
            os.kill(walsender, signal.SIGCONT)
        receive_until_all_is_sent(stream)
        source.execute("insert into a values (1)")
        assert len(rows_of(reader.read_to(flushed(source)))) == 1


def receive_until_all_is_sent(stream: ReplicationStream) -> None:
    give_up_at = time.monotonic() + 60
    while stream._unflushed:
        assert time.monotonic() < give_up_at, "feedback stays unsent"
        stream.receive(0.05)
