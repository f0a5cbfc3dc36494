"""A task's page in the book of its run, which the pipeline's own store keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgetl import clearing
from airflow_provider_pgetl.engine.state.protocol import CompletionStore

if TYPE_CHECKING:
    from airflow.sdk import Context


@dataclass(frozen=True, slots=True)
class Page:
    """`is_cleared` and `is_repeated` are what the book said when the page was opened."""

    store: CompletionStore
    run: str
    task: str
    is_cleared: bool
    is_repeated: bool

    @classmethod
    def open(cls, store: CompletionStore, context: Context, before: Sequence[str]) -> Page:
        run, task = run_of(context), task_of(context)
        known = store.completions(run)
        cleared, repeated = clearing.was_cleared(task, before, known), clearing.is_repeated(task, before, known)
        return cls(store, run, task, cleared, repeated)

    def begin(self) -> None:
        self.store.record_completion(self.run, clearing.begun(self.task))

    def obey(self) -> None:
        """What the Clear asked for is done."""
        self.store.record_completion(self.run, clearing.obeyed(self.task))


@dataclass(frozen=True, slots=True)
class ApplyTask:
    """The `apply` of a run, by the run's name in the book and the task's id."""

    run: str
    task: str

    @property
    def dag_id(self) -> str:
        return self.run.partition("/")[0]


def run_of(context: Context) -> str:
    return f"{context['ti'].dag_id}/{context['run_id']}"


def task_of(context: Context) -> str:
    task, index = context["ti"].task_id, context["ti"].map_index
    return task if index is None or index < 0 else f"{task}[{index}]"
