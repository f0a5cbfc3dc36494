"""Private folders of processes, which go with them.

Whoever makes one takes it away. Of a process that was killed it stays; so it is named for its process, and the next to
make one takes away those whose process is no more.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from airflow_provider_pgetl.engine.processes import is_gone, this_process


def private_folder(purpose: str) -> Path:
    """A new one, empty, that nobody else can read. Its name begins with `purpose`."""
    prefix = f"pgetl-{purpose}-"
    _sweep(Path(tempfile.gettempdir()), prefix)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{this_process().replace('/', '~')}-"))


def _sweep(place: Path, prefix: str) -> None:
    for folder in place.glob(f"{prefix}*"):
        if is_gone(_owner(folder.name.removeprefix(prefix))) and _is_ours(folder):
            shutil.rmtree(folder, ignore_errors=True)  # another may be sweeping the same


def _owner(rest: str) -> str:
    return rest.rpartition("-")[0].replace("~", "/")


def _is_ours(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False
