"""Folders that servers can get at: they run under another account, and pytest keeps its folders to itself."""

from __future__ import annotations

import tempfile
from pathlib import Path


def reachable(folder: Path) -> Path:
    """The folder, opened with every one above it that pytest made."""
    root = Path(tempfile.gettempdir())
    for above in (folder, *folder.parents):
        if above == root or root not in above.parents:
            break
        above.chmod(0o755)
    return folder
