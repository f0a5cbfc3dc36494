"""Work waits until there is room in memory for it."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from airflow_provider_pgetl.engine import working_memory
from airflow_provider_pgetl.engine.working_memory import WorkingMemory, allow, processors


def begun(memory: WorkingMemory, size: int, pool: ThreadPoolExecutor) -> tuple[threading.Event, threading.Event]:
    """Some work in a thread: whether it has begun, and what lets it end."""
    inside, end = threading.Event(), threading.Event()

    def work() -> None:
        with memory.taken(size):
            inside.set()
            assert end.wait(10)

    _work: Future[None] = pool.submit(work)
    return inside, end


def test_what_does_not_fit_waits() -> None:
    memory = WorkingMemory(100)
    with ThreadPoolExecutor(4) as pool:
        first, end_first = begun(memory, 60, pool)
        assert first.wait(10)
        second, end_second = begun(memory, 60, pool)
        assert not second.wait(0.05)
        third, end_third = begun(memory, 40, pool)
        assert third.wait(10)
        end_first.set()
        assert second.wait(10)
        end_second.set()
        end_third.set()


def test_what_is_held_leaves_less_room_but_never_stops_all_work() -> None:
    memory = WorkingMemory(100)
    memory.hold(1000)
    with ThreadPoolExecutor(4) as pool:
        first, end_first = begun(memory, 5000, pool)
        assert first.wait(10)
        second, end_second = begun(memory, 1, pool)
        assert not second.wait(0.05)
        end_first.set()
        assert second.wait(10)
        third, end_third = begun(memory, 1, pool)
        assert not third.wait(0.05)
        memory.hold(-1000)
        assert third.wait(10)
        end_second.set()
        end_third.set()
    assert memory.held == 0


def test_failed_work_gives_back_what_it_took() -> None:
    memory = WorkingMemory(100)
    for _ in range(3):
        with pytest.raises(ValueError, match="failed"), memory.taken(90):
            raise ValueError("failed")
    with memory.taken(60), memory.taken(40):
        pass


def test_a_worker_s_memory_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_memory, "WORKING", WorkingMemory())
    allow(1 << 20)
    least = working_memory.WORKING.limit
    allow(1 << 30)
    assert working_memory.WORKING.limit - least == (1 << 29) - (1 << 19)
    assert processors() >= 1
