"""Whether a process, known by its name, is no more."""

import os
import re
import socket
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from airflow_provider_pgetl.engine import processes
from airflow_provider_pgetl.engine.processes import in_words, is_gone, this_process

_TELL = "from airflow_provider_pgetl.engine.processes import this_process; print(this_process(), flush=True); input()"


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
