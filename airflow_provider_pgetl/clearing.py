"""Retry or Clear? A task that finds its own completion in this run was cleared; one that does not is retried.

Airflow's Clear takes downstream tasks along. Those must follow, not act: so a task counts as cleared *itself* only if
no task before it, of its own table or of the pipeline, has completed since it last did. Nothing of Airflow's own is
relied on: XComs are wiped by Clear, and counters of tries mean different things in different versions.

Beside completions a task notes in the same book when it begins (`begun`), and when it has done what Clear asked of it
(`obeyed`): what is retried after that must not do it again. Where `prepare` passes over the tasks of a table that is
Ready, it notes that once for all of them (`passed_over`), and each counts as completed then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def begun(task: str) -> str:
    """Under which name the book has it that the task began."""
    return f"{task}#begun"


def obeyed(task: str) -> str:
    """Under which name the book has it that the task did what its Clear asked for."""
    return f"{task}#obeyed"


def passed_over(task: str) -> str:
    """Under which name the book has it that the tasks of the same table, by their task group, were passed over."""
    return f"{task.rpartition('.')[0]}#passed_over"


def completed(task: str, completions: Mapping[str, float]) -> float | None:
    """When the task last completed, or was passed over."""
    return _last((task, passed_over(task)), completions)


def was_cleared(task: str, before: Iterable[str], completions: Mapping[str, float]) -> bool:
    """`completions`: when each task of this run last completed; `before`: the tasks that this one follows."""
    own = completed(task, completions)
    return own is not None and not _later(own, (*before, obeyed(task)), completions)


def is_repeated(task: str, before: Iterable[str], completions: Mapping[str, float]) -> bool:
    """Whether the task has begun in this run already, or was passed over, and is now retried or cleared: what it found
    wrong the last time somebody, or the clock, may have settled."""
    last = _last((begun(task), passed_over(task)), completions)
    return last is not None and not _later(last, before, completions)


def is_to_come(task: str, before: Iterable[str], completions: Mapping[str, float]) -> bool:
    """Whether the task has work before it in this run: under way, not begun, or behind one that has completed since."""
    own = completed(task, completions)
    return own is None or _later(own, (*before, begun(task)), completions)


def _last(tasks: Iterable[str], completions: Mapping[str, float]) -> float | None:
    return max((completions[one] for one in tasks if one in completions), default=None)


def _later(moment: float, tasks: Iterable[str], completions: Mapping[str, float]) -> bool:
    return any(completions.get(task, moment) > moment for task in tasks)
