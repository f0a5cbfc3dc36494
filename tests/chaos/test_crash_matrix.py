"""Every row of the protocol's crash matrix: the process dies exactly there, and the next run puts it right.

A small shop that changes while it is replicated. A failpoint is armed, the run dies of it (which is asserted: a place
that is never passed proves nothing), another run goes to its end, and then source and destination are equal, every
table is Ready, and no slot and no staging is left but what is needed.

The places of a phase are died at one after the other, in one shop; each alone, in a shop of its own, among the slow
tests.
"""

import os

import pytest

from tests.comparing import assert_equal
from tests.runs import KILLED, Runs
from tests.shop import SMALL_SHOP, small_file
from tests.trade import Changes, Truncates

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("source_server", [16], indirect=True)]

COPYING = ("copy.slot_created", "copy.begun", "copy.range_stored", "copy.publishing", "copy.published")
CATCHING_UP = (
    "copy.finished", "catchup.write", "catchup.write_done", "catchup.confirming", "catchup.confirmed",
    "recording.CameNear", "recorded.CameNear", "recording.TargetChosen", "recorded.TargetChosen",
    "recording.CaughtUp",
)  # fmt: skip
HANDED_OVER = ("recorded.CaughtUp", "slot.dropping", "slot.dropped", "recording.TakenOver", "recorded.TakenOver")
APPLYING = (
    "apply.write", "apply.write_done", "ceiling.recording", "ceiling.high_water", "ceiling.recorded",
    "apply.confirming", "apply.confirmed", "apply.write_done:5", "apply.confirmed:3",
)  # fmt: skip
TRUNCATED = (
    "copy.truncate_found", "copy.published", "copy.finished", "catchup.write_done", "catchup.confirmed",
    "recorded.CameNear", "recorded.TargetChosen", "recorded.CaughtUp",
)  # fmt: skip
PREPARING = ("prepare.published", "prepare.slot_created", "takeover.claimed", "takeover.demoted")
TAKING_OVER = ("recorded.TargetChosen", "prepare.published", "takeover.claimed", "takeover.demoted")


def _die_at(runs: Runs, *failpoints: str) -> None:
    with Changes(runs.databases.source):
        for failpoint in failpoints:
            run = runs.start(PGETL_FAILPOINT=failpoint)
            assert run.wait(120) == KILLED, f"{failpoint} was never passed\n{run.said()}"


def _assert_put_right(runs: Runs) -> None:
    assert runs.until_caught_up() == 0, runs.log
    assert_equal(runs.databases, SMALL_SHOP)
    runs.assert_settled()


def test_it_dies_while_it_prepares(runs: Runs) -> None:
    _die_at(runs, *PREPARING)
    _assert_put_right(runs)


def test_it_dies_while_it_copies(runs: Runs) -> None:
    _die_at(runs, *COPYING)
    _assert_put_right(runs)


@pytest.mark.slow
def test_it_dies_while_a_table_that_it_copies_is_truncated(runs: Runs) -> None:
    with Truncates(runs.databases.source, "public.quiet_0", 0.02):
        _die_at(runs, *TRUNCATED)
    _assert_put_right(runs)


def test_it_dies_while_it_catches_up(runs: Runs) -> None:
    _die_at(runs, *CATCHING_UP)
    _assert_put_right(runs)


@pytest.mark.slow
def test_it_dies_when_it_has_handed_over(runs: Runs) -> None:
    """Groups of one table each, so that every death has a hand-over of its own."""
    runs.text = small_file(group="8KiB", workers=1)
    _die_at(runs, *HANDED_OVER)
    _assert_put_right(runs)


def test_it_dies_while_it_applies(runs: Runs) -> None:
    assert runs.until_caught_up() == 0, runs.log
    _die_at(runs, *APPLYING)
    _assert_put_right(runs)


@pytest.mark.slow
def test_it_dies_again_while_it_takes_over(runs: Runs) -> None:
    """A dead worker has left a hand-over half way; the next ones die while they clean up."""
    _die_at(runs, *TAKING_OVER)
    _assert_put_right(runs)


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", [*PREPARING, *COPYING, "copy.published:3", *CATCHING_UP, *HANDED_OVER, *APPLYING])
def test_it_dies_there_alone(runs: Runs, failpoint: str) -> None:
    _die_at(runs, failpoint)
    _assert_put_right(runs)


def test_without_a_failpoint_nothing_dies(runs: Runs) -> None:
    """The measure of the others."""
    assert "PGETL_FAILPOINT" not in os.environ
    with Changes(runs.databases.source):
        assert runs.until_caught_up() == 0, runs.log
    _assert_put_right(runs)
