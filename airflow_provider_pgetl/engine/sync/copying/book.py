"""How far each table of a copy has come. Pure: fed with outcomes, asked what is complete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.reports import CopyProgressed
from airflow_provider_pgetl.engine.sync.copying.transfer import Outcome, RangeTask
from airflow_provider_pgetl.engine.tables import TableName


@dataclass
class TableCopy:
    """One table from the moment its ranges are planned."""

    table: TableName
    target: Target
    attempt: int
    tasks: Sequence[RangeTask]
    rows: int = 0
    bytes_done: int = 0
    rewritten: bool = False
    _waiting: dict[int, RangeTask] = field(init=False)

    def __post_init__(self) -> None:
        self._waiting = {task.number: task for task in self.tasks}

    @property
    def bytes_total(self) -> int:
        return sum(task.size for task in self.tasks)

    @property
    def complete(self) -> bool:
        return not self._waiting

    def stored(self, outcome: Outcome) -> None:
        """A range is in. Told a second time, it changes nothing."""
        task = self._waiting.pop(outcome.number, None)
        if task is not None:
            self.rows += outcome.rows
            self.rewritten |= outcome.rewritten
            self.bytes_done += task.size

    @property
    def progress(self) -> CopyProgressed:
        return CopyProgressed(self.table, self.attempt, self.bytes_done, self.bytes_total, self.rows)


def largest_first(copies: Iterable[TableCopy]) -> list[RangeTask]:
    """All ranges in the order in which they are best begun: big ones early, so that none is left alone at the end.
    Among ranges alike, those of one table stay together, so that it is complete early."""
    ordered = sorted(copies, key=lambda copy: (-copy.bytes_total, copy.table))
    return sorted((task for copy in ordered for task in copy.tasks), key=lambda task: -task.size)
