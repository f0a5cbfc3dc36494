"""Failpoints: places at which a process can be made to crash, so that every crash of the protocol can be tested.

A failpoint is armed by name in the environment: ``PGETL_FAILPOINT=name`` kills the process, with SIGKILL and without
any cleanup, when it reaches the failpoint; ``name:3`` when it reaches it for the third time. If it is not armed,
reaching it costs one comparison.
"""

from __future__ import annotations

import itertools
import os
import signal

_NAME, _, _TIME = os.environ.get("PGETL_FAILPOINT", "").partition(":")
_PASSED = itertools.count(1)


def reach(name: str) -> None:
    """Kills the process if this failpoint is armed and was reached as often as requested."""
    if name == _NAME and next(_PASSED) == int(_TIME or "1"):
        os.kill(os.getpid(), signal.SIGKILL)
