"""A continuous run ends after its time, and the next takes over, without anybody's hand."""

from collections.abc import Iterator

import pytest

from tests.processes.replica import Replica

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1800)]

DAG, RUNS = "rotating", 3


@pytest.fixture
def rotating(replica: Replica) -> Iterator[Replica]:
    yield replica
    replica.stop(DAG)


def test_every_run_is_followed_by_another(rotating: Replica) -> None:
    rotating.rest.pause(DAG, False)
    rotating.wait(lambda: len(rotating.rest.runs(DAG)) >= RUNS, f"{RUNS} runs")
    states = list(rotating.rest.runs(DAG).values())
    assert states.count("success") >= RUNS - 1, states
    rotating.trade.pause()
    try:
        rotating.wait(lambda: _equal(rotating), "the replica is equal")
    finally:
        rotating.trade.resume()


def test_a_clear_in_an_older_run_resets_nothing_and_does_not_stop_the_runs_after_it(rotating: Replica) -> None:
    rotating.rest.pause(DAG, False)
    rotating.wait(lambda: len(_ended(rotating)) >= RUNS, f"{RUNS} runs")
    older = _ended(rotating)[-1]
    rotating.rest.clear(DAG, older, "public__customers.data_sync")
    before = rotating.examples.execute("select 'rotated.customers'::regclass::oid::int")
    rotating.wait(lambda: rotating.rest.runs(DAG)[older] == "failed", "the older run has failed", 300)
    tasks = rotating.rest.tasks(DAG, older)
    assert tasks["public__customers.data_sync"].state == "failed"
    ended = len(_ended(rotating))
    rotating.wait(lambda: len(_ended(rotating)) > ended, "runs go on")
    assert rotating.examples.execute("select 'rotated.customers'::regclass::oid::int") == before


def test_a_table_that_becomes_errored_fails_its_run_and_is_red_in_the_next_which_streams_on(rotating: Replica) -> None:
    rotating.rest.pause(DAG, False)
    rotating.wait(lambda: len(_ended(rotating)) >= 1 and _is_streaming(rotating), "it streams")
    before = _failed(rotating)
    rotating.examples.execute("alter table rotated.customers add constraint poison check (name <> 'poison')")
    rotating.source.execute(
        "insert into customers (name, email, country) values ('poison', 'poison@example.net', 'XX')"
    )
    rotating.wait(lambda: bool(_failed(rotating) - before), "the run has failed")
    (failed,) = _failed(rotating) - before
    apply = rotating.rest.tasks(DAG, failed)["apply"]
    assert apply.state == "failed"
    rotating.wait(
        lambda: "public.customers is Errored" in rotating.rest.log(DAG, failed, "apply", apply.try_number),
        "its log says why",
        60,
    )

    def streams_without_it() -> bool:
        tasks = rotating.rest.tasks(DAG, next(iter(rotating.rest.runs(DAG))))
        return tasks["apply"].state == "deferred" and tasks["public__customers.data_sync"].state == "failed"

    rotating.wait(streams_without_it, "the next run streams on, and the table's own task has failed")
    rotating.examples.execute("alter table rotated.customers drop constraint poison")


def _is_streaming(replica: Replica) -> bool:
    tasks = replica.rest.tasks(DAG, next(iter(replica.rest.runs(DAG))))
    passed = tasks["public__customers.ready"].state in ("success", "skipped")
    return passed and tasks["apply"].state == "deferred"


def _ended(replica: Replica) -> list[str]:
    """Runs, the newest first."""
    return [run for run, state in replica.rest.runs(DAG).items() if state in ("success", "failed")]


def _failed(replica: Replica) -> set[str]:
    return {run for run, state in replica.rest.runs(DAG).items() if state == "failed"}


def _equal(replica: Replica) -> bool:
    here = replica.source.execute("select c::text from customers c order by 1")
    return here == replica.examples.execute("select c::text from rotated.customers c order by 1")
