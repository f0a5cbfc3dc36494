"""Runners that do something while the copy holds its snapshot: before ranges are read, or between their outcomes."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import psycopg

from airflow_provider_pgetl.engine.copy.ranges import Endpoints, RangeTask
from airflow_provider_pgetl.engine.copy.runners import LocalRunner, Outcomes, Wanted


@dataclass
class Meddling:
    """Calls `before` once the ranges are planned, and `after` with the number of outcomes that the driver has seen.
    Ranges are run one by one, in `order` if that is given."""

    before: Callable[[], object] = lambda: None
    after: Callable[[int], object] = lambda _: None
    order: Callable[[RangeTask], int] = lambda _: 0

    def run(self, endpoints: Endpoints, tasks: Sequence[RangeTask], wanted: Wanted) -> Outcomes:
        self.before()
        seen = 0
        with closing(LocalRunner(1).run(endpoints, sorted(tasks, key=self.order), wanted)) as outcomes:
            for outcome in outcomes:
                yield outcome
                if outcome is not None:
                    seen += 1
                    self.after(seen)


@dataclass
class Witness:
    """Reads with its own hands what the copy's snapshot shows, and keeps it in `seen`, one text per query."""

    queries: Sequence[str]
    before: Callable[[], object] = lambda: None
    seen: dict[str, list[tuple[object, ...]]] = field(default_factory=dict)

    def run(self, endpoints: Endpoints, tasks: Sequence[RangeTask], wanted: Wanted) -> Outcomes:
        self.before()
        with psycopg.connect(endpoints.resolved().source) as connection:
            connection.execute("set transaction isolation level repeatable read")
            connection.execute(f"set transaction snapshot '{endpoints.snapshot}'".encode())
            for query in self.queries:
                self.seen[query] = connection.execute(query.encode()).fetchall()
        return LocalRunner(2).run(endpoints, tasks, wanted)
