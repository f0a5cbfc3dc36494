"""What status says of a stream at work: how far it is behind, and that what it goes by is gone."""

import json
import random
import re
import time

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Server
from tests.failures.pipeline import PipelineUnderTest

pytestmark = pytest.mark.servers

MIB = 1 << 20
LAGS = "select * from pgetl.lags"


def lags(shop: PipelineUnderTest) -> list[int]:
    return [table["lag_bytes"] for table in json.loads(shop.pgetl("status", "--json").out)["tables"]]


def unconfirmed(shop: PipelineUnderTest) -> int:
    statement = "select (pg_current_wal_flush_lsn() - confirmed_flush_lsn)::int8 from pg_replication_slots"
    ((size,),) = shop.source.execute(f"{statement} where slot_name = %s", [shop.apply_slot])
    return int(size)


def test_a_stream_that_is_caught_up_is_not_behind_for_what_others_write(
    shop: PipelineUnderTest, server16: Server
) -> None:
    """Into another database of the cluster, of whose WAL the stream confirms only now and then that it was nothing."""
    other = server16.create_database("elsewhere")
    try:
        other.execute("create table noise (words text)")
        with shop.follow() as run:
            found: list[int] = []
            while len(found) < 2:
                time.sleep(random.uniform(0.0, 2.0))  # it confirms and tells its lag at moments of their own
                before = shop.state.execute(LAGS)
                other.execute("insert into noise select repeat('x', 1000) from generate_series(1, 3000)")
                run.until(lambda before=before: shop.state.execute(LAGS) != before, "it said its lag")
                if unconfirmed(shop) > 2 * MIB:  # else it has just been confirmed, and nothing is to be seen
                    found.append(max(lags(shop)))
            assert max(found) < MIB
            run.stop().assert_well()
    finally:
        server16.drop_database(other.name)


def test_a_stream_that_is_held_up_is_behind(shop: PipelineUnderTest) -> None:
    with shop.follow() as run:
        with shop.destination.connect(autocommit=False) as session:
            session.execute("lock table items")
            # What waits first holds the position: of a long transaction much is passed before it commits.
            shop.source.execute("insert into items values (999, 'first')")
            shop.source.execute("insert into items select n, repeat('x', 1000) from generate_series(1000, 4000) n")
            run.until(lambda: min(lags(shop)) > 2 * MIB, "it is told how far it is behind")
        run.until(lambda: max(lags(shop)) < MIB, "it has caught up")
        run.stop().assert_well()


def test_who_streams_is_said_in_words(shop: PipelineUnderTest) -> None:
    with shop.follow() as run:
        said = shop.pgetl("status")
        assert re.search(rf"^Streamed by process {run.process.pid} on \S+ since ", said.out, re.MULTILINE)
        run.stop().assert_well()


def test_a_slot_that_was_dropped_is_warned_of(followed: PipelineUnderTest) -> None:
    assert "warning: " not in followed.pgetl("status").out
    followed.source.execute("select pg_drop_replication_slot(%s)", [followed.apply_slot])
    said = followed.pgetl("status")
    said.assert_well()
    assert "warning: The slot that the tables are followed by does not exist any more. Reset the tables" in said.out
