"""The example DAGs, as they stand in `dags/`, in the Airflow that the other tests of this package use."""

from collections import Counter
from collections.abc import Iterator

import pytest

from airflow_provider_pgetl.engine.monitoring.surveys import survey
from tests.processes.replica import Replica

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800)]

CONTINUOUS, QUARTERLY, REPORT = "shop_to_postgres", "orders_every_quarter", "sales_report"
ORDERS_COPY = "replication.public__orders.data_sync"
COPIES = {
    CONTINUOUS: {
        "customers": "public.customers",
        "products": "public.products",
        "orders": "sales.orders",
        "order_lines": "sales.order_lines",
    },
    QUARTERLY: {"customers": "report.customers", "orders": "report.orders"},
}


@pytest.fixture
def examples(replica: Replica) -> Iterator[Replica]:
    """What a test lets run runs no more afterwards."""
    yield replica
    for dag in (REPORT, QUARTERLY):
        replica.rest.pause(dag)
    replica.stop(CONTINUOUS)


def _states(replica: Replica, dag: str, run: str) -> dict[str, str | None]:
    return {name: task.state for name, task in replica.rest.tasks(dag, run).items()}


def _start(replica: Replica, dag: str) -> str:
    """By its own schedule; the run."""
    replica.rest.pause(dag, False)
    replica.wait(lambda: bool(replica.rest.runs(dag)), f"{dag} runs")
    return next(iter(replica.rest.runs(dag)))


def _rows(replica: Replica, dag: str) -> list[tuple[list[tuple[object, ...]], list[tuple[object, ...]]]]:
    """Of each table: the source's rows and the copy's."""
    return [
        (
            replica.source.execute(f"select t::text from {table} t order by 1"),
            replica.examples.execute(f"select t::text from {copy} t order by 1"),
        )
        for table, copy in COPIES[dag].items()
    ]


def _equal(replica: Replica, dag: str) -> bool:
    return all(here == there for here, there in _rows(replica, dag))


@pytest.mark.slow
def test_the_continuous_one_replicates_the_shop(examples: Replica) -> None:
    run = _start(examples, CONTINUOUS)
    examples.wait(
        lambda: (
            (states := _states(examples, CONTINUOUS, run)).pop("apply") == "deferred"
            and set(states.values()) == {"success"}
        ),
        "all tables are Ready",
    )
    examples.trade.pause()
    try:
        examples.wait(lambda: _equal(examples, CONTINUOUS), "the replica is equal")
    finally:
        examples.trade.resume()


@pytest.mark.slow
def test_the_group_catches_up_and_the_report_follows_it(examples: Replica) -> None:
    examples.rest.pause(REPORT, False)
    first = _start(examples, QUARTERLY)
    examples.wait(lambda: examples.rest.runs(QUARTERLY)[first] == "success", "the first run has caught up")
    examples.wait(lambda: "success" in examples.rest.runs(REPORT).values(), "the report has run")
    reported = len(examples.rest.runs(REPORT))

    examples.trade.pause()
    try:
        second = examples.rest.trigger(QUARTERLY)
        examples.wait(lambda: examples.rest.runs(QUARTERLY)[second] == "success", "the second run has caught up")
        announced = Counter(examples.rest.asset_events())
        third = examples.rest.trigger(QUARTERLY)
        examples.wait(lambda: examples.rest.runs(QUARTERLY)[third] == "success", "the third run has caught up")
        news = Counter(examples.rest.asset_events()) - announced
        assert {uri.rstrip("/"): times for uri, times in news.items()} == {"pgetl://orders_report": 1}, "no table's own"
        assert _equal(examples, QUARTERLY)
        [(orders,)] = examples.source.execute("select count(*) from orders")
    finally:
        examples.trade.resume()

    states = _states(examples, QUARTERLY, second)
    assert states[ORDERS_COPY] == "skipped", "Ready tables are passed over"
    assert (states["replication.caught_up"], states["analyze"]) == ("success", "success")
    examples.wait(lambda: len(examples.rest.runs(REPORT)) > reported, "the report runs again")
    latest = "select orders from report.totals order by at desc limit 1"
    examples.wait(lambda: examples.examples.execute(latest) == [(orders,)], "it sees all that was brought")


@pytest.mark.slow
def test_a_task_that_was_passed_over_does_its_work_when_it_is_cleared(examples: Replica) -> None:
    run = examples.rest.trigger(QUARTERLY) if examples.rest.runs(QUARTERLY) else _start(examples, QUARTERLY)
    examples.rest.pause(QUARTERLY, False)
    examples.wait(lambda: examples.rest.runs(QUARTERLY)[run] == "success", "a run has caught up")
    if _states(examples, QUARTERLY, run)[ORDERS_COPY] != "skipped":
        run = examples.rest.trigger(QUARTERLY)
        examples.wait(lambda: examples.rest.runs(QUARTERLY)[run] == "success", "a run finds all tables Ready")
    assert _states(examples, QUARTERLY, run)[ORDERS_COPY] == "skipped"
    before = _generations(examples)

    examples.rest.clear(QUARTERLY, run, ORDERS_COPY)
    examples.rest.clear(QUARTERLY, run, "replication.apply")
    examples.wait(lambda: _states(examples, QUARTERLY, run)[ORDERS_COPY] == "success", "it copies")
    examples.wait(lambda: examples.rest.runs(QUARTERLY)[run] == "success", "the run has caught up again")
    after = _generations(examples)
    assert {name for name in after if after[name] > before[name]} == {"public.orders"}
    assert _states(examples, QUARTERLY, run)["replication.public__customers.data_sync"] == "skipped"


def _generations(replica: Replica) -> dict[str, int]:
    found = survey(replica.source.uri, "orders_report")
    assert found is not None
    return {str(each.table): each.state.generation for each in found.tables}


@pytest.mark.slow
def test_a_backfill_is_refused_by_each_of_its_runs(examples: Replica) -> None:
    """Airflow accepts one of a DAG that is not ours; its runs would be active beside each other."""
    _start(examples, QUARTERLY)
    before = _generations(examples) if "success" in examples.rest.runs(QUARTERLY).values() else None
    period = {"from_date": "2026-01-02T00:00:00Z", "to_date": "2026-01-02T00:15:00Z"}
    examples.rest.backfill(QUARTERLY, **period)

    def backfilled() -> dict[str, str]:
        runs = examples.rest.runs(QUARTERLY)
        return {run: state for run, state in runs.items() if run.startswith("backfill__")}

    examples.wait(lambda: set(backfilled().values()) == {"failed"}, "its runs have failed")
    for run in backfilled():
        prepare = examples.rest.tasks(QUARTERLY, run)["replication.prepare"]
        assert "backfill" in examples.rest.log(QUARTERLY, run, "replication.prepare", prepare.try_number)
    assert before is None or _generations(examples) == before
