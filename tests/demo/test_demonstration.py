"""The demo, from outside: what it says, how it exits, and what it leaves behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from airflow_provider_pgetl.demo.destinations import DESTINATIONS
from airflow_provider_pgetl.testing.servers.installations import descendants, lives

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]


class Demo:
    """A demo in a session of its own; what it says is kept."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "airflow_provider_pgetl", "demo", "--orders", "3000", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        self.said = ""

    def wait_until_it_says(self, words: str) -> None:
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return
        pytest.fail(f"it ended without saying {words!r}:\n{self.said}")

    def wait(self, timeout: float) -> int:
        rest, _ = self.process.communicate(timeout=timeout)
        self.said += rest
        return self.process.returncode

    def family(self) -> list[psutil.Process]:
        return descendants(self.process.pid)


@pytest.fixture
def started() -> Iterator[list[Demo]]:
    demos: list[Demo] = []
    yield demos
    for demo in demos:
        demo.process.kill()
        demo.process.communicate()


def _assert_gone(processes: list[psutil.Process], within: float) -> None:
    give_up_at = time.monotonic() + within
    while (left := [each for each in processes if lives(each)]) and time.monotonic() < give_up_at:
        time.sleep(0.2)
    assert left == []


@pytest.mark.parametrize("destination", DESTINATIONS)
def test_once_ends_by_itself_when_source_and_replica_are_equal(started: list[Demo], destination: str) -> None:
    began = time.monotonic()
    demo = Demo("--once", "--destination", destination)
    started.append(demo)
    assert demo.wait(400) == 0, demo.said
    assert "Equal: 6 tables" in demo.said
    assert re.search(r"DAY +CUSTOMERS +PAYMENTS +REVENUE\n20\d\d-\d\d-\d\d +[\d,]+ +[\d,]+ +[\d,]+\.\d\d\n", demo.said)
    assert re.search(rf"Airflow: http://127\.0\.0\.1:\d+/dags/shop_to_{destination}", demo.said)
    assert time.monotonic() - began < 240


def test_ctrl_c_stops_everything_that_it_started(started: list[Demo]) -> None:
    demo = Demo()
    started.append(demo)
    demo.wait_until_it_says("public.orders: DataSync")
    family = demo.family()
    assert len(family) > 10
    demo.process.send_signal(signal.SIGINT)
    assert demo.wait(60) == 0
    assert "Stopping everything." in demo.said
    _assert_gone(family, 5)


def test_what_a_killed_demo_started_ends_as_well(started: list[Demo]) -> None:
    demo = Demo()
    started.append(demo)
    demo.wait_until_it_says("public.orders: DataSync")
    family = demo.family()
    os.kill(demo.process.pid, signal.SIGKILL)
    _assert_gone(family, 60)
