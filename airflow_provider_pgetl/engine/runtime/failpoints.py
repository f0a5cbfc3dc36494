"""Places at which a process can be made to die, so that every crash of the protocol can be tried for real.

A failpoint is armed by name in the environment: ``PGETL_FAILPOINT=name`` kills the process, with SIGKILL and without
any clean-up, when it passes there; ``name:3`` when it passes there for the third time. Unarmed, passing costs one
comparison.
"""

from __future__ import annotations

import itertools
import os
import signal

_NAME, _, _TIME = os.environ.get("PGETL_FAILPOINT", "").partition(":")
_PASSED = itertools.count(1)


def reach(name: str) -> None:
    """Die here if this is the failpoint that is armed and its time has come."""
    if name == _NAME and next(_PASSED) == int(_TIME or "1"):
        os.kill(os.getpid(), signal.SIGKILL)
