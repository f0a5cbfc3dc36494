"""Retry or Clear? A task that finds its own completion in this run was cleared; one that does not is retried.

Airflow's Clear takes downstream tasks along. Those must follow, not act: so a task counts as cleared *itself* only if
no task before it, of its own table or of the pipeline, has completed since it last did. Nothing of Airflow's own is
relied on: XComs are wiped by Clear, and counters of tries mean different things in different versions.

Beside completions a task notes in the same book when it begins (`begun`), and when it has done what Clear asked of it
(`obeyed`): what is retried after that must not do it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def begun(task: str) -> str:
    """Under which name the book has it that the task began."""
    return f"{task}#begun"


def obeyed(task: str) -> str:
    """Under which name the book has it that the task did what its Clear asked for."""
    return f"{task}#obeyed"


def was_cleared(task: str, before: Iterable[str], completions: Mapping[str, float]) -> bool:
    """`completions`: when each task of this run last completed; `before`: the tasks that this one follows."""
    own = completions.get(task)
    return own is not None and not _later(own, (*before, obeyed(task)), completions)


def is_repeated(task: str, before: Iterable[str], completions: Mapping[str, float]) -> bool:
    """Whether the task has begun in this run already, and is now retried or cleared: what it found wrong the last time
    somebody, or the clock, may have settled."""
    last = completions.get(begun(task))
    return last is not None and not _later(last, before, completions)


def is_to_come(task: str, before: Iterable[str], completions: Mapping[str, float]) -> bool:
    """Whether the task has work before it in this run: under way, not begun, or behind one that has completed since."""
    own = completions.get(task)
    return own is None or _later(own, (*before, begun(task)), completions)


def _later(moment: float, tasks: Iterable[str], completions: Mapping[str, float]) -> bool:
    return any(completions.get(task, moment) > moment for task in tasks)
