"""What a killed process leaves in the folder for temporary files goes with the next start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from airflow_provider_pgetl.engine.runtime.processes import private_folder

_MAKE = """
from airflow_provider_pgetl.engine.runtime.processes import private_folder
print(private_folder("spark"), flush=True)
input()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_only_what_a_process_left_that_is_no_more_is_swept(place: Path) -> None:
    """Whatever is in it; and not what somebody else called alike."""
    maker = subprocess.Popen(
        [sys.executable, "-c", _MAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert maker.stdout is not None
    theirs = Path(maker.stdout.readline().strip())
    (theirs / "job.json").write_text("{}")
    os.mkfifo(theirs / "lifeline")
    strange = place / "pgetl-spark-of-somebody"
    strange.mkdir()
    keys = private_folder("keys")
    ours = private_folder("spark")
    assert {ours, theirs, strange, keys} == set(place.iterdir())
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    another = private_folder("spark")
    assert {ours, another, strange, keys} == set(place.iterdir())
    assert ours.stat().st_mode & 0o077 == 0
