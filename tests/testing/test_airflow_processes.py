"""The harness itself: what the other tests take for granted about it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from airflow_provider_pgetl.testing.servers.airflow_watchdog import members_of
from airflow_provider_pgetl.testing.servers.installations import lives

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]

_SCRIPT = """
import sys, tempfile, time
from pathlib import Path
from airflow_provider_pgetl.testing.servers.airflow_processes import Airflow
from airflow_provider_pgetl.testing.servers.postgres_servers import Server

with Server.start(16) as server:
    database = server.create_database("airflow")
    with Airflow.start(dags=Path(tempfile.mkdtemp()), database=database.uri, connections={}) as airflow:
        print(airflow.home, flush=True)
        sys.stdin.read()
        print(airflow.stop(), flush=True)
"""


@pytest.fixture
def starter() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def _assert_nothing_is_left(home: Path, processes: list[psutil.Process]) -> None:
    give_up_at = time.monotonic() + 40
    while (home.exists() or any(map(lives, processes))) and time.monotonic() < give_up_at:
        time.sleep(0.2)
    assert not [process for process in processes if lives(process)]
    assert not home.exists()


def test_everything_ends_with_its_starter(starter: subprocess.Popen[str]) -> None:
    home = Path(starter.stdout.readline().strip())
    members = members_of(home)
    assert len(members) >= 5
    starter.stdin.close()
    assert starter.stdout.readline().strip() == "[]", "nothing had to be killed"
    assert starter.wait(60) == 0
    _assert_nothing_is_left(home, members)


def test_everything_ends_though_its_starter_is_killed(starter: subprocess.Popen[str]) -> None:
    home = Path(starter.stdout.readline().strip())
    members = members_of(home)
    assert len(members) >= 5
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    _assert_nothing_is_left(home, members)
