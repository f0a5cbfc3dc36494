"""The group's tables, from the moment their schemas are known to the publication of the last one.

Whatever happens while one table is dealt with goes to that table's account if it concerns it alone, and is raised
otherwise. Runs in the driver's thread; only `_wanted` is asked by others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.failpoints import reach
from airflow_provider_pgetl.engine.reports import Noted, Observer
from airflow_provider_pgetl.engine.source.catalog import PublishedTable
from airflow_provider_pgetl.engine.source.ranges import plan_ranges
from airflow_provider_pgetl.engine.sync.copying.book import TableCopy, largest_first
from airflow_provider_pgetl.engine.sync.copying.claims import Claims
from airflow_provider_pgetl.engine.sync.copying.failing import concerns_one_table, unforeseen
from airflow_provider_pgetl.engine.sync.copying.retrying import persistently
from airflow_provider_pgetl.engine.sync.copying.runners import RangeRunner
from airflow_provider_pgetl.engine.sync.copying.staging import Staging
from airflow_provider_pgetl.engine.sync.copying.transfer import Endpoints, Outcome, RangeTask
from airflow_provider_pgetl.engine.table_names import written
from airflow_provider_pgetl.engine.tables import TableName

log = logging.getLogger(__name__)


class TablesCopy:
    """`over` says whether the attempt has ended; then nothing more is begun or published."""

    def __init__(
        self, claims: Claims, staging: Staging, observer: Observer, patience: float, over: Callable[[], bool]
    ) -> None:
        self._claims = claims
        self._staging = staging
        self._observer = observer
        self._patience = patience
        self._over = over
        self._begun: dict[TableName, TableCopy] = {}

    def begin(self, published: PublishedTable, target: Target, range_bytes: int) -> None:
        """Plan the table's ranges and make room for its rows."""
        table, schema = published.table, published.schema
        ranges = plan_ranges(published.leaves, range_bytes)
        tasks = [RangeTask(schema, published.row_filter, one, target) for one in ranges]
        copy = self._begun[table] = TableCopy(table, target, self._staging.attempt, tasks)
        with _Blame(self._claims, table):
            persistently(lambda: self._staging.begin(published, target), self._over, self._patience)
            reach("copy.begun")
            self._observer(copy.progress)

    def run(self, runner: RangeRunner, endpoints: Endpoints, all_read: Callable[[], None]) -> None:
        """Have all ranges moved, and publish each table with its last one. `all_read` is called when there is no range
        left to read, though tables may still have to be published."""
        self._settle(self._held, all_read)
        with closing(runner.run(endpoints, largest_first(self._held), self._wanted)) as outcomes:
            for outcome in outcomes:
                if self._over():
                    return
                if outcome is not None and self._claims.holds(outcome.table):
                    self._take(outcome, self._begun[outcome.table])
                    self._settle([self._begun[outcome.table]], all_read)

    def abort_rest(self) -> None:
        """Take away what was staged of tables that were not published."""
        for copy in self._begun.values():
            if copy.table not in self._claims.published:
                self._abort(copy)

    @property
    def _held(self) -> list[TableCopy]:
        return [copy for copy in self._begun.values() if self._claims.holds(copy.table)]

    def _wanted(self, task: RangeTask) -> bool:
        return self._claims.holds(task.table) and not self._over()

    def _take(self, outcome: Outcome, copy: TableCopy) -> None:
        with _Blame(self._claims, copy.table):
            if outcome.failure is not None:
                raise outcome.failure.error
            copy.stored(outcome)
            reach("copy.range_stored")
            self._observer(copy.progress)

    def _settle(self, copies: list[TableCopy], all_read: Callable[[], None]) -> None:
        """Publish those that are complete; of those that failed, let nothing lie about for as long as others take."""
        if all(copy.complete for copy in self._held):
            all_read()
        for copy in copies:
            if not self._claims.holds(copy.table):
                self._abort(copy)
            elif copy.complete and not self._over():
                self._publish(copy)

    def _publish(self, copy: TableCopy) -> None:
        with _Blame(self._claims, copy.table):
            if not self._claims.confirm(copy.table):
                return
            reach("copy.publishing")
            persistently(lambda: self._staging.publish(copy.table, copy.target, copy.rows), self._over, self._patience)
            reach("copy.published")
            self._claims.finish(copy.table, self._staging.boundary)
            reach("copy.finished")

    def _abort(self, copy: TableCopy) -> None:
        try:
            self._staging.abort(copy.target)
        except PgetlError as error:
            # The next attempt takes it away.
            message = f"What was staged of {written(copy.table)} could not be removed now: {error.message}"
            self._observer(Noted("warning", message, copy.table))


class _Blame:
    """Within it, an error that concerns this table alone ends the table, and nothing else. What nobody foresaw does."""

    def __init__(self, claims: Claims, table: TableName) -> None:
        self._claims = claims
        self._table = table

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception) and not isinstance(error, PgetlError):
            log.error("The copy of %s failed", self._table, exc_info=error)
            error = unforeseen(f"The copy of {self._table}", error, str(self._table))
        if not isinstance(error, PgetlError) or not concerns_one_table(error):
            return False
        self._claims.fail(self._table, error)
        return True
