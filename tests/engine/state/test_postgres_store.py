"""What the store in Postgres must stand: other writers, a server that dies, settings made for other people."""

import asyncio
import contextlib
import itertools
import logging
import multiprocessing
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from statistics import median

import psycopg
import pytest

from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.model.phases import CopyStarted, DataSync, Refused, Reset
from airflow_provider_pgetl.engine.model.positions import Boundary, HighWater
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.state_database import StateDatabase
from airflow_provider_pgetl.engine.state.store import Registration, Store, open_store
from airflow_provider_pgetl.testing.servers.postgres_servers import PASSWORD, Database, Server
from tests.engine.state.samples import CUSTOMERS, ORDERS, schema_of
from tests.raising import raises

pytestmark = pytest.mark.servers

TABLES = [TableName("public", f"t{number}") for number in range(6)]


@pytest.fixture
def store(state_database: Database) -> Iterator[Store]:
    store = open_store(state_database.uri, "shop")
    yield store
    store.close()


# -- several at once --------------------------------------------------------------------------------------------------


def _reset_often(uri: str, times: int) -> int:
    """How many of our resets took effect; each is of the generation that we saw last."""
    store = open_store(uri, "shop")
    won = 0
    for turn in range(times):
        store.load()
        chosen = TABLES if turn % 2 else list(reversed(TABLES))
        events = {table: Reset(store.tables()[table].state.generation) for table in chosen}
        won += not isinstance(store.apply(events), Refused)
    store.close()
    return won


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_each_event_takes_effect_once_whoever_sends_it(store: Store, state_database: Database, pool: str) -> None:
    for table in TABLES:
        store.register(table, 1, 2)
    with (
        ThreadPoolExecutor(4)
        if pool == "threads"
        else ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as workers
    ):
        won = sum(workers.map(_reset_often, [state_database.uri] * 4, [25] * 4))
    assert 25 <= won <= 100
    store.load()
    assert {record.state.generation for record in store.tables().values()} == {won + 1}
    for table in TABLES:
        assert [entry.state.generation for entry in store.history(table)] == list(range(1, won + 2))


def test_an_event_that_waited_for_a_lock_sees_what_was_committed(store: Store, state_database: Database) -> None:
    """The locked row is re-read after the wait; a state read before it would let both through."""
    store.register(ORDERS, 1, 2)
    other = open_store(state_database.uri, "shop")
    with psycopg.connect(state_database.uri) as blocker, ThreadPoolExecutor(2) as threads:
        blocker.execute("select from pgetl.tables for update")
        answers = [threads.submit(each.apply, {ORDERS: Reset(1)}) for each in (store, other)]
        _wait_for_lock_waiters(state_database, 2)
        blocker.rollback()
        results = [answer.result(60) for answer in answers]
    other.close()
    assert sorted(isinstance(result, Refused) for result in results) == [False, True]
    assert len(store.history(ORDERS)) == 2


def _wait_for_lock_waiters(database: Database, count: int) -> None:
    query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    give_up_at = time.monotonic() + 60
    while database.execute(query) != [(count,)]:
        assert time.monotonic() < give_up_at, "nobody waits"
        time.sleep(0.01)


def test_writers_of_the_same_tables_in_any_order_do_not_deadlock(state_database: Database) -> None:
    tables = [TableName("public", f"t{number:03}") for number in range(200)]
    stores = [open_store(state_database.uri, "shop") for _ in range(4)]
    for table in tables:
        stores[0].register(table, 1, 2)
    marks = itertools.count(1)

    def write(number: int) -> None:
        order = tables if number % 2 else tables[::-1]
        for _ in range(25):
            mark = next(marks)
            stores[number].raise_high_water({table: HighWater(1, Boundary(mark)) for table in order})
            stores[number].acknowledge(dict.fromkeys(order, mark))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    stores[0].load()
    for store in stores:
        store.close()
    assert {(record.high_water, record.acknowledged) for record in stores[0].tables().values()} == {
        (HighWater(1, Boundary(100)), 100)
    }


def test_a_worker_s_events_and_tables_that_are_added_do_not_deadlock(state_database: Database) -> None:
    tables = {TableName("public", f"t{number:03}"): Registration(number, None) for number in range(50)}
    worker, preparing = (open_store(state_database.uri, "shop") for _ in range(2))
    worker.register_all(tables)

    def prepare() -> None:
        for number in range(60):
            preparing.register_all({**tables, TableName("public", f"new{number}"): Registration(number, None)})

    def work() -> None:
        for generation in range(1, 61):
            worker.apply({table: Reset(generation) for table in tables}, epoch=0)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(prepare), threads.submit(work)]:
            done.result(120)
    worker.load()
    assert {worker.tables()[table].state.generation for table in tables} == {61}
    assert len(worker.tables()) == 110
    for each in (worker, preparing):
        each.close()


def test_one_of_many_gets_the_lease(state_database: Database) -> None:
    stores = [open_store(state_database.uri, "shop") for _ in range(6)]
    start = threading.Barrier(6)

    def take(number: int) -> int | None:
        start.wait()
        lease = stores[number].acquire_lease(f"worker {number}", 60)
        return lease.epoch if lease else None

    with ThreadPoolExecutor(6) as threads:
        epochs = list(threads.map(take, range(6)))
    for each in stores:
        each.close()
    assert sorted(epochs, key=lambda epoch: epoch or 0) == [None] * 5 + [1]


def test_many_opening_at_once_make_one_pipeline(state_database: Database) -> None:
    def instance(_: int) -> str:
        with contextlib.closing(open_store(state_database.uri, "shop")) as store:
            return store.pipeline().instance

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(instance, range(4)))) == 1


def test_a_slow_load_does_not_bury_a_newer_write(store: Store, state_database: Database) -> None:
    """Threads that share a store: the load has read the old phase and hangs when the other thread wants to write."""
    store.register(ORDERS, 1, 2)
    with contextlib.closing(open_store(state_database.uri, "shop")) as other:
        other.store_schema(ORDERS, Boundary(1), schema_of(ORDERS, "id"))
    with psycopg.connect(state_database.uri) as blocker, ThreadPoolExecutor(2) as threads:
        blocker.execute("lock table pgetl.destination_tables")
        loading = threads.submit(store.load)
        _wait_for_lock_waiters(state_database, 1)
        writing = threads.submit(store.apply, {ORDERS: Reset(1)})
        time.sleep(0.2)
        blocker.rollback()
        loading.result(60)
        writing.result(60)
    assert store.tables()[ORDERS].state.generation == 2


# -- a server that dies -----------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[Server]:
    with Server.start(16) as server:
        yield server


def test_a_dead_server_is_named_and_the_store_recovers_by_itself(server: Server) -> None:
    store = open_store(server.uri(), "shop")
    store.register(ORDERS, 1, 2)
    store.wait(0)
    server.kill()
    for act in (store.load, lambda: store.apply({ORDERS: Reset(1)}), lambda: store.wait(1), store.lease):
        with raises(ErrorKind.STORE) as caught:
            act()
        assert caught.value.transient
        assert f"127.0.0.1:{server.port}/postgres" in caught.value.message
        assert PASSWORD not in str(caught.value)
    assert store.tables()[ORDERS].state.generation == 1
    server.resume()
    assert not isinstance(store.apply({ORDERS: Reset(1)}), Refused)
    other = open_store(server.uri(), "shop")
    other.register(CUSTOMERS, 1, 2)
    assert store.wait(60)
    assert CUSTOMERS in store.tables()
    other.close()
    store.close()


def _kill_and_resume(server: Server) -> None:
    server.kill()
    server.resume()


def test_a_server_killed_under_load(server: Server) -> None:
    """After each answer the state is what the answer said; after an error, the old or the new one."""
    store = open_store(server.uri(), "shop")
    store.register(ORDERS, 1, 2)
    failures: list[ErrorKind] = []
    deadline = time.monotonic() + 60
    killer = threading.Timer(0.3, _kill_and_resume, [server])
    killer.start()
    confirmed = 1
    while (not failures or killer.is_alive()) and time.monotonic() < deadline:
        try:
            store.load()
            found = store.tables()[ORDERS].state.generation
            assert found >= confirmed
            taken = store.apply({ORDERS: Reset(found)})
            assert not isinstance(taken, Refused)
            confirmed = taken[ORDERS].generation
        except PgetlError as error:
            failures.append(error.kind)
            time.sleep(0.02)
    killer.join()
    assert set(failures) == {ErrorKind.STORE}
    store.load()
    assert store.tables()[ORDERS].state.generation in (confirmed, confirmed + 1)
    store.close()


def test_a_listening_connection_that_was_ended_is_replaced(store: Store, state_database: Database) -> None:
    store.wait(0)
    state_database.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pgetl shop store'"
    )
    other = open_store(state_database.uri, "shop")
    other.register(ORDERS, 1, 2)
    assert store.wait(60)
    assert ORDERS in store.tables()
    other.close()


def test_what_no_notification_told_is_found_by_polling(store: Store, state_database: Database) -> None:
    """As behind a pooler that swallows LISTEN."""
    while store.wait(0.1):
        pass
    state_database.execute("update pgetl.pipelines set revision = revision + 1, epoch = 7")
    assert store.wait(60)
    assert store.pipeline().epoch == 7


def test_a_schema_that_was_dropped_underneath(store: Store, state_database: Database) -> None:
    """As the last pipeline's end does. Nobody at work goes on and waits for it to come back."""
    state_database.execute("drop schema pgetl cascade")
    with pytest.raises(Fenced, match="was destroyed") as caught:
        store.load()
    assert "begins anew" in caught.value.remedy


# -- settings made for others -----------------------------------------------------------------------------------------

_LIMITS = (
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
)


@pytest.fixture(params=[16, 18])
def hostile(request: pytest.FixtureRequest, state_databases: dict[int, Database]) -> Iterator[Database]:
    """A database whose owner allows nobody more than half a second of anything."""
    server = state_databases[request.param].server
    database = server.create_database("hostile")
    with server.connect("postgres") as elsewhere:
        for limit in _limits_of(server):
            elsewhere.execute(f"alter database hostile set {limit} = '500ms'")
        elsewhere.execute("alter database hostile set default_transaction_isolation = 'serializable'")
    yield database
    server.drop_database("hostile")


def _limits_of(server: Server) -> tuple[str, ...]:
    return _LIMITS if server.major >= 17 else _LIMITS[:-1]


def test_sessions_of_those_who_only_look_are_pinned_too(hostile: Database) -> None:
    ask = "select name, setting from pg_settings where name in ('DateStyle', 'TimeZone', 'search_path', 'lock_timeout')"
    for setting in ("datestyle = 'German'", "timezone = 'Asia/Tokyo'", "search_path = 'nowhere'"):
        hostile.execute(f"alter database hostile set {setting}")
    place = StateDatabase.parse(hostile.uri)

    async def waiting() -> list[tuple[str, str]]:
        async with await place.connect_async("pgetl test") as connection:
            return await (await connection.execute(ask)).fetchall()

    with place.connect("pgetl test") as connection:
        looking = connection.execute(ask).fetchall()
    pinned = {"DateStyle": "ISO, MDY", "TimeZone": "UTC", "search_path": "pg_catalog", "lock_timeout": "0"}
    assert dict(looking) == dict(asyncio.run(waiting())) == pinned


def test_limits_of_the_database_do_not_bind_our_sessions(hostile: Database) -> None:
    store = open_store(hostile.uri, "shop")
    store.register(ORDERS, 1, 2)
    store.wait(0)
    sessions = "select count(*) from pg_stat_activity where application_name = 'pgetl shop store'"
    with hostile.server.connect("postgres") as elsewhere:
        before = elsewhere.execute(sessions).fetchall()
        time.sleep(0.8)
        assert elsewhere.execute(sessions).fetchall() == before == [(2,)]
    store.close()


def test_a_write_waits_for_its_lock_and_then_decides_by_what_it_finds(hostile: Database) -> None:
    store = open_store(hostile.uri, "shop")
    store.register(ORDERS, 1, 2)
    unlimited = " ".join(f"-c {limit}=0" for limit in _limits_of(hostile.server))
    with psycopg.connect(hostile.uri, options=unlimited) as blocker, ThreadPoolExecutor(1) as threads:
        blocker.execute("update pgetl.tables set acknowledged = 1")
        answer = threads.submit(store.apply, {ORDERS: CopyStarted(1, 1)})
        time.sleep(0.8)
        assert not answer.done()
        blocker.commit()
        taken = answer.result(60)
    store.close()
    assert not isinstance(taken, Refused)
    assert taken[ORDERS].phase == DataSync()


_PAGE_HEADER = 24  # which the place where the next record goes lies behind, and which is not a record


def test_what_is_answered_is_on_disk(state_database: Database) -> None:
    state_database.execute(f"alter database {state_database.name} set synchronous_commit = off")
    store = open_store(state_database.uri, "shop")
    insert, flush = "pg_current_wal_insert_lsn()", "pg_current_wal_flush_lsn()"
    behind = []
    for number in itertools.count(1):
        store.record_progress("apply", Boundary(number))
        behind += state_database.execute(f"select {insert} - {flush}")
        if number == 20:
            break
    store.close()
    # The server itself writes now and then, and waits for nobody; ours would be behind each time.
    assert median(float(distance) for (distance,) in behind) <= _PAGE_HEADER


# -- secrets and addresses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("postgresql://postgres:sw0rdfish@127.0.0.1:{port}/postgres", ErrorKind.AUTHENTICATION),
        ("postgresql://nobody:sw0rdfish@127.0.0.1:{port}/postgres", ErrorKind.AUTHENTICATION),
        ("postgresql://postgres:sw0rdfish@127.0.0.1:1/postgres", ErrorKind.STORE),
        ("postgresql://postgres:sw0rdfish@127.0.0.1:1/postgres?sword=fish", ErrorKind.CONFIG),
        ("postgresql://postgres:sw0rdfish %@127.0.0.1/x", ErrorKind.CONFIG),
        ("postgresql://postgres:sw0rdfish@127.0.0.1:5x5/x", ErrorKind.STORE),
        ("host=127.0.0.1 password=sw0rdfish port", ErrorKind.CONFIG),
        ("mysql://root:sw0rdfish@127.0.0.1/x", ErrorKind.CONFIG),
    ],
)
def test_no_password_in_errors_and_logs(
    server16: Server, uri: str, kind: ErrorKind, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with raises(kind) as caught:
        open_store(uri.format(port=server16.port), "shop")
    told = "".join(traceback.format_exception(caught.value))
    assert "sw0rdfish" not in told
    assert "sw0rdfish" not in caplog.text


def test_no_password_in_the_logs_of_a_store_at_work(state_database: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = open_store(state_database.uri, "shop")
    store.register(ORDERS, 1, 2)
    store.wait(0)
    state_database.execute("drop schema pgetl cascade")
    with pytest.raises(PgetlError) as caught:
        store.load()
    store.close()
    told = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(vars(store))
    assert caplog.records
    assert PASSWORD not in told
    assert PASSWORD.replace(" ", "%20") not in told


def test_a_server_that_does_not_answer_is_given_up(state_database: Database) -> None:
    """A host that takes connections and says nothing: `connect_timeout` ends it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"postgresql://a:b@127.0.0.1:{silent.getsockname()[1]}/x?connect_timeout=2"
        with pytest.raises(PgetlError) as caught:
            open_store(uri, "shop")
    assert caught.value.kind is ErrorKind.STORE


def test_a_uri_over_the_socket_and_in_keyword_form(state_database: Database) -> None:
    server, name = state_database.server, state_database.name
    for uri in (server.socket_uri(name), f"host={server.home} port={server.port} user=postgres dbname={name}"):
        with contextlib.closing(open_store(uri, "shop")) as store:
            assert store.pipeline().id == "shop"
