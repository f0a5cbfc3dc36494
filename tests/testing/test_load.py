"""A load writes until it is told to end, pauses between transactions, and outlives a restart of the server."""

from __future__ import annotations

import random
import time

import psycopg
import pytest

from airflow_provider_pgetl.testing.load import COMMITTED, Load, Session
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server


def insert(session: Session, dice: random.Random) -> str:
    session.execute("insert into t values (%s)", [dice.random()])
    if dice.random() < 0.2:
        session.rollback()
        return "rolled back"
    session.commit()
    return COMMITTED


def rows(database: Database) -> int:
    ((count,),) = database.execute("select count(*) from t")
    return int(count)


def test_what_is_counted_is_there_and_a_pause_is_one() -> None:
    with Server.start(18) as server:
        database = server.create_database("loaded")
        database.execute("create table t (n float8)")
        with Load(database.uri, insert, per_second=200, writers=3) as load:
            load.wait_for(30)
            load.pause()
            assert load.paused
            count = rows(database)
            assert count == load.transactions >= 30
            time.sleep(0.2)
            assert rows(database) == count
            load.resume()
            load.wait_for(5)
            server.restart("immediate")
            load.wait_for(5)
        assert load.outcomes["rolled back"] > 0
        assert rows(database) >= load.transactions, "one may be committed whose answer was lost"
        database.execute("drop table t")
        with pytest.raises(psycopg.errors.UndefinedTable), Load(database.uri, insert) as load:
            load.wait_for(1)
