"""Whether a process, known by its name, is no more."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from airflow_provider_pgetl.engine.runtime import processes
from airflow_provider_pgetl.engine.runtime.processes import (
    WorkingMemory,
    allow,
    in_words,
    is_gone,
    processors,
    this_process,
)

_TELL = (
    "from airflow_provider_pgetl.engine.runtime.processes import this_process; "
    "print(this_process(), flush=True); input()"
)


def _tell() -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", _TELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_process_that_lives_is_not_gone() -> None:
    process, name = _tell()
    assert not is_gone(name)
    assert not is_gone(this_process())
    process.kill()
    process.wait()
    assert is_gone(name)


def test_a_process_that_nobody_has_buried_is_gone() -> None:
    process, name = _tell()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(name)
    process.wait()


def test_another_that_came_to_the_same_number_is_not_taken_for_it() -> None:
    *rest, _ = this_process().split("/")
    assert is_gone("/".join((*rest, "1")))


def test_in_words() -> None:
    """Of another machine's process its age is unknown: nobody here knows when that machine was booted."""
    words = re.fullmatch(rf"process {os.getpid()} on {socket.gethostname()} since (.{{19}})", in_words(this_process()))
    assert words
    age = time.time() - datetime.fromisoformat(words[1]).timestamp()
    assert -2 < age < 24 * 3600
    assert in_words("elsewhere/b00t/4026/77/12345") == "process 77 on elsewhere"
    assert in_words("anything at all") == "anything at all"


def test_nothing_is_claimed_of_other_machines() -> None:
    assert not is_gone("elsewhere/" + this_process().split("/", 1)[1])
    assert not is_gone("")
    assert not is_gone("anything at all")


def test_a_process_that_cannot_be_seen_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where /proc hides other users' processes: only that the kernel knows of none tells that it has ended."""
    hidden = tmp_path / "proc"
    for path in ("sys/kernel/random/boot_id", "self/ns/pid"):
        (hidden / path).parent.mkdir(parents=True)
    (hidden / "sys/kernel/random/boot_id").write_text(Path("/proc/sys/kernel/random/boot_id").read_text())
    (hidden / "self/ns/pid").symlink_to(Path("/proc/self/ns/pid").readlink())
    process, name = _tell()
    monkeypatch.setattr(processes, "_PROC", hidden)
    assert not is_gone(name)
    process.kill()
    process.wait()
    assert is_gone(name)


def test_nothing_is_claimed_where_the_space_of_process_ids_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers may have one host name."""
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    assert not is_gone(f"{socket.gethostname()}/unknown/unknown/1/12345")


# -- What is spared, and that nobody misses it; in processes of their own, as it cannot be undone. ---------------------

_SPARED = "from airflow_provider_pgetl.engine.runtime.processes import spare_pandas; spare_pandas(); "
_RETURNED = "from airflow_provider_pgetl.engine.runtime.processes import return_memory; return_memory(); "
_CONVERTED = "import sys, pyarrow as pa; a = pa.array([1, 2]); a.to_numpy(); pa.table({'a': a}).to_pylist(); "


def said(code: str) -> str:
    """By a process that has no allocator's settings from a library of the tests."""
    environment = {name: value for name, value in os.environ.items() if name != "_RJEM_MALLOC_CONF"}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return run.stdout.strip()


@pytest.mark.parametrize(("before", "found"), [("", "True"), (_SPARED, "False")])
def test_conversions_need_no_pandas(before: str, found: str) -> None:
    assert said(f"{before}{_CONVERTED}print('pandas' in sys.modules)") == found


def test_who_asks_for_pandas_gets_it() -> None:
    asked = "import pandas; print(a.to_pandas().sum(), isinstance(a.to_pandas(), pandas.Series))"
    assert said(f"{_SPARED}{_CONVERTED}{asked}") == "3 True"


def test_arrow_takes_its_memory_from_the_system_and_children_do_not_hear_of_it() -> None:
    told = "any('ARROW' in name for name in os.environ)"
    code = f"import os, pyarrow as pa; print(pa.default_memory_pool().backend_name, {told})"
    assert said(f"{_RETURNED}{code}") == "system False"


@pytest.mark.parametrize(("before", "found"), [("", "False"), (_RETURNED, "True")])
def test_what_is_freed_goes_back(before: str, found: str) -> None:
    """Many arrays of six megabytes, every second of which is let go of, after one that made the heap grow."""
    code = """
import os, numpy as np
del [np.ones(30 << 20, np.uint8)][:]
def resident(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
kept = [np.ones(6 << 20, np.uint8) for _ in range(40)]
full = resident(); kept = kept[::2]; print(full - resident() > 80)
"""
    assert said(f"{before}\n{code}") == found


def test_delta_keeps_one_arena_unless_the_environment_says_otherwise() -> None:
    code = "import os; print(os.environ['_RJEM_MALLOC_CONF'])"
    assert said(f"{_RETURNED}{code}").startswith("narenas:1,")
    assert said(f"import os; os.environ['_RJEM_MALLOC_CONF'] = 'tcache:false'; {_RETURNED}{code}") == "tcache:false"


def test_a_run_settles_it_before_it_reads_a_file_that_asks_for_the_library_of_a_lake(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(
        'id = "p"\ntables = ["public.*"]\n[source]\nuri = "postgresql://nobody@127.0.0.1:1/none"\n'
        f'[destination]\ntype = "delta"\nuri = "{tmp_path}/lake"\n'
    )
    run = f"""
import sys; from airflow_provider_pgetl.cli.app import app
print('pyarrow' in sys.modules, 'deltalake' in sys.modules)
code = app(["run", {str(file)!r}], standalone_mode=False)
import pyarrow as pa; print(pa.default_memory_pool().backend_name)"""
    assert said(run).splitlines()[0] == "False False"
    assert said(run).splitlines()[-1] == "system"


def test_the_process_that_streams_imports_neither_library_before_it_has_settled_it() -> None:
    code = "import sys, airflow_provider_pgetl.engine.streaming_process"
    assert said(f"{code}; print('pyarrow' in sys.modules, 'deltalake' in sys.modules)") == "False False"


# -- Work waits until there is room in memory for it. ------------------------------------------------------------------


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
    monkeypatch.setattr(processes, "WORKING", WorkingMemory())
    allow(1 << 20)
    least = processes.WORKING.limit
    allow(1 << 30)
    assert processes.WORKING.limit - least == (1 << 29) - (1 << 19)
    assert processors() >= 1
