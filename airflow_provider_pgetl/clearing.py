"""Retry or Clear? A task that finds its own completion in this run was cleared; one that does not is retried.

Airflow's Clear takes downstream tasks along. Those must follow, not act: so a task counts as cleared *itself* only if
no task before it, of its own table or of the pipeline, has completed since it last did. Nothing of Airflow's own is
relied on: XComs are wiped by Clear, and counters of tries mean different things in different versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def was_cleared(task: str, before: Iterable[str], completions: Mapping[str, float]) -> bool:
    """`completions`: when each task of this run last completed; `before`: the tasks that this one follows."""
    own = completions.get(task)
    return own is not None and all(completions.get(earlier, own) <= own for earlier in before)
