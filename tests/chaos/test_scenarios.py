"""Scenarios of PostgreSQL's subscription tests and of Debezium's, in one pipeline; see docs/subscription-tests.md."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Databases, Server
from tests.chaos.scenarios import SCENARIOS
from tests.failures.pipeline import PipelineUnderTest

pytestmark = pytest.mark.servers

# Transactions beyond this go to disk at the source, subtransaction by subtransaction.
_SETTINGS = {"max_prepared_transactions": 10, "logical_decoding_work_mem": "64kB"}


@pytest.fixture(params=[18, pytest.param(16, marks=pytest.mark.slow)])
def pipeline(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PipelineUnderTest]:
    with Server.start(request.param, _SETTINGS) as server:
        databases = Databases(server.create_database("source"), server.create_database("destination"))
        scenarios = [one for one in SCENARIOS if one.since <= server.major]
        made = PipelineUnderTest(databases, server.create_database("state"), tmp_path, declared=("public.*",))
        made.tables = tuple(one.table for one in scenarios)
        for one in scenarios:
            made.source.execute(one.create or "select")
        yield made
        made.close()


def test_each_scenario_arrives_by_both_paths(pipeline: PipelineUnderTest) -> None:
    """What is copied, what is followed, and what was followed and is copied."""
    pipeline.catch_up().assert_well()
    pipeline.assert_equal()
    for one in SCENARIOS:
        if one.table in pipeline.tables:
            pipeline.source.execute(one.changes or "select")
    _copy_in(pipeline)
    pipeline.catch_up().assert_well()
    pipeline.assert_equal()
    assert set(pipeline.phases().values()) == {"Ready"}
    pipeline.databases = Databases(pipeline.source, pipeline.source.server.create_database("another"))
    pipeline.id = "again"
    pipeline.catch_up().assert_well()
    pipeline.assert_equal()


def _copy_in(pipeline: PipelineUnderTest) -> None:
    """Rows of one COPY share their place in the WAL."""
    with pipeline.source.connect() as session, session.cursor().copy("copy included from stdin") as copy:
        for number in range(1000, 1300):
            copy.write_row((number, number))


def test_prepared_transactions_arrive_when_they_are_committed(pipeline: PipelineUnderTest) -> None:
    """Prepared before a crash of the source and committed after it; rolled back; with subtransactions; of nothing."""
    source = pipeline.source
    pipeline.catch_up().assert_well()
    for name, end in (
        ("committed", ""),
        ("rolled back", ""),
        ("in part", "rollback to s; insert into computed values (42)"),
    ):
        number = 100 + len(name)
        source.execute(
            f"begin; insert into included values ({number}, 1); update included set b = 9 where a = {number}; "
            f"savepoint s; insert into computed values ({number}); {end}; prepare transaction '{name}'"
        )
    source.execute("begin; select * from included for update; prepare transaction 'nothing'")
    pipeline.catch_up().assert_well()
    assert pipeline.at_destination("select * from included where b = 9") == []
    source.server.kill()
    source.server.resume()
    for name in ("committed", "in part", "nothing"):
        source.execute(f"commit prepared '{name}'")
    source.execute("rollback prepared 'rolled back'")
    pipeline.catch_up().assert_well()
    pipeline.assert_equal()
    assert len(pipeline.at_destination("select * from included where b = 9")) == 2
