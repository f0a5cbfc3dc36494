"""What the store in memory promises beyond the protocol."""

import subprocess
import sys

import pytest

from airflow_provider_pgetl.engine.model.errors import Fenced
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.state.memory_store import MemoryDatabase, MemoryStore
from airflow_provider_pgetl.engine.state.store import open_store
from tests.engine.state.samples import ORDERS


def test_with_a_clock_of_its_own_waiting_takes_no_time() -> None:
    database = MemoryDatabase(clock=lambda: 0.0)
    one, other = MemoryStore("shop", database), MemoryStore("shop", database)
    assert not one.wait(3600)
    other.register(ORDERS, 1, 2)
    assert one.wait(3600)


def test_a_restart_finds_what_was_written_before() -> None:
    database = MemoryDatabase()
    MemoryStore("shop", database).register(ORDERS, 1, 2)
    assert ORDERS in MemoryStore("shop", database).tables()


def test_instances_can_be_chosen() -> None:
    database = MemoryDatabase(instances=lambda: "aaaaaa")
    assert MemoryStore("shop", database).pipeline().instance == "aaaaaa"


def test_a_throw_away_store_is_nobody_elses() -> None:
    open_store("memory:", "shop").register(ORDERS, 1, 2)
    assert open_store("memory:", "shop").tables() == {}


def test_a_state_that_was_set_back_is_noticed() -> None:
    database = MemoryDatabase()
    store = MemoryStore("shop", database)
    durable = database.pipeline("shop")
    before = durable.view
    store.register(ORDERS, 1, 2)
    durable.view = before
    for act in (store.load, lambda: store.record_progress("ceiling", Boundary(5)), lambda: store.apply({})):
        with pytest.raises(Fenced, match="was set back to an earlier one"):
            act()


def test_it_needs_no_database_library() -> None:
    code = (
        "import sys; from airflow_provider_pgetl.engine.state.store import open_store; "
        "open_store('memory:', 'shop');"
        "sys.exit(any(name in sys.modules for name in ('sqlalchemy', 'alembic', 'psycopg')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
