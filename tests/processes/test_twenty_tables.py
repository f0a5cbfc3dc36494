"""Twenty tables: what a Clear and a rotation cost, for how long nothing streams, and a table added meanwhile."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.gaps import Gaps
from tests.processes.many import DAG, SLOT, ManyTables, many_tables
from tests.processes.replica import STEPS

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(2400)]

FOLLOWED, BEHIND = "many__t01.ready", "behind"


@pytest.fixture
def twenty(tmp_path: Path) -> Iterator[ManyTables]:
    with many_tables(tmp_path, 21) as found:
        yield found


def test_twenty_tables(twenty: ManyTables) -> None:
    """The figures are printed: `pytest -rP` shows them."""
    began = time.monotonic()
    twenty.rest.pause(DAG, False)
    twenty.wait(lambda: bool(twenty.rest.runs(DAG)), "it runs")
    run = next(iter(twenty.rest.runs(DAG)))
    twenty.wait(lambda: twenty.ready() == 20, "all tables are Ready")
    print("seconds_until_ready", round(time.monotonic() - began, 1))
    twenty.wait_until_settled(run, 20)
    print("seconds_until_settled", round(time.monotonic() - began, 1))
    assert twenty.states(run)[BEHIND] == "success"

    # A table is added to the file: the run that is under way takes it up, and no task of it fails.
    twenty.edit("range(1, 21)", "range(1, 22)")
    twenty.wait(lambda: "many__t21.ready" in twenty.states(run), "the run has its tasks")
    twenty.wait_until_settled(run, 21)
    assert twenty.rest.tasks(DAG, run)["many__t21.init"].try_number == 1

    # It is taken out again: the run lets go of it, and streams on.
    twenty.edit("range(1, 22)", "range(1, 21)")
    registered = "select count(*) from pgetl.tables"
    with Gaps(twenty.source, DAG, "of a table that is taken out of the file"):
        twenty.wait(lambda: twenty.source.execute(registered) == [(20,)], "the table is let go of", 300)
        twenty.wait_until_settled(run, 20)
    assert twenty.rest.runs(DAG)[run] == "running"
    twenty.edit("range(1, 21)", "range(1, 22)")
    twenty.wait_until_settled(run, 21)

    # A Clear of `prepare`, which takes everything along: the stream does not wait for a hundred tasks.
    again = twenty.rest.tasks(DAG, run)["prepare"].try_number + 1
    applied = twenty.rest.tasks(DAG, run)["apply"].try_number
    with Gaps(twenty.source, DAG, "of a cleared prepare") as gaps:
        assert len(twenty.rest.clear(DAG, run, "prepare")) == 2 + 21 * len(STEPS) + 1
        twenty.wait(lambda: twenty.rest.tasks(DAG, run)["prepare"].try_number == again, "it is prepared again")
        twenty.wait_until_settled(run, 21)
    assert twenty.rest.tasks(DAG, run)["apply"].try_number == applied + 1
    assert max(gaps.found, default=0.0) < 90, "none where the new worker waits for the old one to end"
    assert twenty.succeeded(run) == {"prepare", FOLLOWED, BEHIND}, "others are passed over, what is followed is not"

    # Rotation: two tasks, and the one that is followed.
    twenty.edit("seconds=3600", "seconds=20")
    time.sleep(15)
    with Gaps(twenty.source, DAG, "of a cleared apply, and of rotations") as gaps:
        twenty.rest.clear(DAG, run, "apply")
        twenty.wait(lambda: len(twenty.rest.runs(DAG)) >= 4, "runs follow each other")
    later = [each for each, state in twenty.rest.runs(DAG).items() if state == "success" and each != run]
    assert later
    for each in later:
        assert twenty.succeeded(each) == {"prepare", "apply", FOLLOWED, BEHIND}
    assert max(gaps.found[1:], default=0.0) < 90, "the first is that of the Clear"

    # In a DAG that is paused Airflow starts no task, so none takes over where a run is rotated: the stream goes on.
    run = next(iter(twenty.rest.runs(DAG)))
    twenty.wait(lambda: twenty.states(run)["apply"] == "deferred", "the latest run streams")
    twenty.rest.pause(DAG)
    with Gaps(twenty.source, DAG, "of a rotation in a DAG that is paused") as gaps:
        twenty.wait(lambda: twenty.states(run)["apply"] == "scheduled", "it is rotated", 120)
        time.sleep(60)
        assert twenty.is_streamed()
        assert twenty.states(run)["apply"] == "scheduled"
        twenty.edit("seconds=20", "seconds=3600")
        time.sleep(15)
        twenty.rest.pause(DAG, False)
        twenty.wait(lambda: len(twenty.rest.runs(DAG)) > 4 and twenty.rest.runs(DAG)[run] == "success", "it goes on")
        run = next(iter(twenty.rest.runs(DAG)))
        twenty.wait_until_settled(run, 21)
    assert max(gaps.found, default=0.0) < 30

    # Nor does it end the stream of the run that is under way to pause the DAG; it does to pause the pipeline, and
    # `apply` stays.
    twenty.rest.pause(DAG)
    time.sleep(20)
    assert twenty.is_streamed()
    tries = twenty.rest.tasks(DAG, run)["apply"].try_number
    twenty.pgetl("pause", f"airflow:{DAG}")
    assert not twenty.is_streamed()
    time.sleep(20)
    assert not twenty.is_streamed()
    twenty.pgetl("resume", f"airflow:{DAG}")
    twenty.wait(twenty.is_streamed, "it streams on", 30)
    assert (twenty.states(run)["apply"], twenty.rest.tasks(DAG, run)["apply"].try_number) == ("deferred", tries)

    # A DAG that is deleted leaves its slot.
    twenty.file.unlink()
    twenty.rest.delete(DAG)
    twenty.wait(lambda: not twenty.is_streamed(), "its stream ends", 180)
    assert twenty.source.execute(SLOT) == [(False,)]
