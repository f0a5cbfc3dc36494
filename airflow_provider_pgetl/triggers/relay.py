"""A trigger ends, and its stream goes on until the next trigger's worker stands ready.

A run of a continuous DAG ends for the next one to take over, and `apply` resumes on a worker to call back and defers
again. Until the next trigger runs, Airflow starts two or three processes, which takes seconds, and on a busy scheduler
minutes. So a child whose trigger ends by one of those reasons is not ended with it: it streams on, in this triggerer,
for at most `LONGEST_SECONDS`. The next child waits for its lease meanwhile, with everything imported, and takes over as
soon as it is released. Where the next trigger runs in this triggerer as well, its child's first word ends the one that
was left; where it runs in another, the time does.

Nobody hears of what a child that was left reports: its trigger's log has ended. What it finds wrong is in the state,
where the next one finds it.

What this does not do: outlive the triggerer. When that ends, so do the children's life lines.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from airflow_provider_pgetl.engine.reports import nobody
from airflow_provider_pgetl.engine.streaming_order import Ending
from airflow_provider_pgetl.triggers.child import Child

LONGEST_SECONDS: Final = 30.0
# Who takes a pipeline down waits for so long for a child that was left: until it is told to end, and has.
OVER_SECONDS: Final = LONGEST_SECONDS + 10.0

# The connection of its state, and its id: of one id there may be several, each with a state database of its own.
Whose = tuple[str, str]

# Those that were left, by their pipeline; the loop itself keeps no task alive.
_left: dict[Whose, dict[asyncio.Task[None], asyncio.Event]] = {}


def leave(pipeline: Whose, child: Child, ending: asyncio.Future[Ending | None]) -> None:
    """Let the child stream on. `ending` reads what it reports, and goes on doing so."""
    child.observe = nobody
    relieved = asyncio.Event()
    task = asyncio.create_task(_stream_on(child, ending, relieved))
    _left.setdefault(pipeline, {})[task] = relieved
    task.add_done_callback(lambda done: _forget(pipeline, done))


def relieve(pipeline: Whose) -> None:
    """The children that were left are to end: another stands ready, or none is wanted any more."""
    for relieved in _left.get(pipeline, {}).values():
        relieved.set()


def _forget(pipeline: Whose, task: asyncio.Task[None]) -> None:
    left = _left[pipeline]
    del left[task]
    if not left:
        del _left[pipeline]


async def _stream_on(child: Child, ending: asyncio.Future[Ending | None], relieved: asyncio.Event) -> None:
    relief = asyncio.ensure_future(relieved.wait())
    either: set[asyncio.Future[Any]] = {ending, relief}
    try:
        await asyncio.wait(either, timeout=LONGEST_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        relief.cancel()
        child.let_go()  # also when the triggerer ends: then the child does the rest by itself
    await child.end()
