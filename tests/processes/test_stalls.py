"""Nothing of ours holds up the triggerer's event loop; and the watch over it (`stalls`) sees what does, and does not
take a busy machine for that."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes.replica import Replica

STALLS = Path(__file__).with_name("stalls")

PROGRAM = """
import asyncio, hashlib, sys, time

async def blocks():
    time.sleep(0.3)

async def computes():
    began = time.thread_time()
    while time.thread_time() < began + 0.3:
        hashlib.sha256(b"x" * 10_000).digest()

async def is_quick():
    began = time.thread_time()
    while time.thread_time() < began + 0.03:
        pass

async def is_a_trigger():
    import greenback  # as Airflow runs triggers

    await greenback.ensure_portal()
    await asyncio.sleep(0.01)
    time.sleep(0.3)

async def main():
    for number in range(5):
        await asyncio.create_task(globals()[sys.argv[2]](), name=f"shop/run/apply/-1/1 (ID {number})")

asyncio.run(main())
"""


# Airflow names the task in which it runs a trigger by the trigger's id; nothing else tells there whose code it is.
OURS = re.compile(r"pgetl|\(ID \d+\)")


def said(folder: Path, what: str) -> str:
    file = folder / f"{what}.txt"
    given = {**os.environ, "PYTHONPATH": str(STALLS), "PGETL_TEST_STALLS": str(file)}
    subprocess.run([sys.executable, "-c", PROGRAM, "triggerer", what], env=given, check=True, timeout=60)
    watched, _, rest = file.read_text().partition("\n")
    assert watched.endswith("is watched")
    return rest


@contextmanager
def busy() -> Iterator[None]:
    """One processor for this process and its children, which eight of them want."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize("what", ["blocks", "computes"])
def test_what_holds_the_loop_up_is_named(tmp_path: Path, what: str) -> None:
    assert f"coro=<{what}()" in said(tmp_path, what)


def test_what_holds_it_up_in_a_trigger_is_taken_for_ours(tmp_path: Path) -> None:
    pytest.importorskip("greenback")
    assert OURS.search(said(tmp_path, "is_a_trigger"))


def test_what_waits_for_a_processor_does_not_hold_it_up(tmp_path: Path) -> None:
    with busy():
        assert said(tmp_path, "is_quick") == ""
        assert "coro=<blocks()" in said(tmp_path, "blocks"), "nor does that hide what does"


@pytest.mark.airflow
@pytest.mark.timeout(1800)
def test_nothing_of_ours_blocks_the_triggerer(settled: Replica) -> None:
    watched, *lines = settled.stalls.read_text().splitlines()
    assert watched.endswith("is watched")
    assert [line for line in lines if OURS.search(line)] == []
