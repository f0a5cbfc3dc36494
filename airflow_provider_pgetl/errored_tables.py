"""Tables that are Errored, as Airflow reports them: in logs, by callbacks, and by tasks that fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_pgetl.engine.model.phases import Errored, TableState
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.wording import in_airflow, with_clear

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.declarations import Callback

Mark = tuple[str, str, int]

log = logging.getLogger(__name__)
_FAILED = "A callback of on_table_errored failed for %s"


@dataclass(frozen=True, slots=True)
class ErroredTable:
    """A table that is Errored.

    `since`: when it became Errored, by the store's clock. `was_ready`: it was Ready before, so that all of its own
    tasks may have passed. `retry_at`: when it is rolled back automatically; None where a person has to act.
    """

    table: TableName
    generation: int
    since: float
    reason: str
    solution: str | None
    was_ready: bool
    retry_at: float | None

    @property
    def mark(self) -> Mark:
        """Identifies this occasion on which the table is Errored: on the next one the table has another generation."""
        return self.table.schema, self.table.name, self.generation

    @property
    def name(self) -> str:
        return written(self.table)

    @property
    def said(self) -> dict[str, Any]:
        """What is added to the context of callbacks."""
        return {
            "table": self.name,
            "reason": self.reason,
            "remedy": self.what_to_do,
            "errored_since": self.since,
            "retry_at": self.retry_at,
            "exception": str(self),
        }

    @property
    def what_to_do(self) -> str:
        """The remedy, and what has to be cleared, or that the table is tried again automatically."""
        if self.retry_at is not None:
            return f"{in_airflow(self.solution or '')} It is tried again by itself.".lstrip()
        copying, failed = "the table's `data_sync`, which copies it again", "the table's task that has failed"
        return with_clear(self.solution or "", copying if self.was_ready else failed)

    def __str__(self) -> str:
        return f"{self.name} is Errored: {self.reason} {self.what_to_do}"

    def as_json(self) -> list[Any]:
        return [
            self.table.schema, self.table.name, self.generation, self.since, self.reason, self.solution,
            self.was_ready, self.retry_at,
        ]  # fmt: skip

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Self:
        schema, name, *rest = data
        return cls(TableName(schema, name), *rest)


def errored_table(table: TableName, state: TableState, since: float) -> ErroredTable | None:
    """Returns None if the table is not Errored."""
    phase = state.phase
    if not isinstance(phase, Errored):
        return None
    retry = phase.retry_policy
    return ErroredTable(
        table,
        state.generation,
        since,
        phase.reason,
        phase.solution,
        phase.from_phase == "Ready",
        retry.at if retry.kind == "timed" else None,
    )


def errored_tables(states: Mapping[TableName, TableState], since: Mapping[TableName, float]) -> list[ErroredTable]:
    """Returns the tables that are Errored, in the order of their names."""
    found = (errored_table(table, states[table], since.get(table, 0.0)) for table in sorted(states))
    return [one for one in found if one is not None]


def call_back(callbacks: Iterable[Callback], context: Context, tables: Iterable[ErroredTable]) -> None:
    """Calls each callback for each table, with Airflow's context and `ErroredTable.said`. An exception of a callback is
    logged."""
    for table in tables:
        for callback in callbacks:
            try:
                _call(callback, {**context, **table.said})
            except Exception:
                log.exception(_FAILED, table.name)


async def acall_back(
    callbacks: Iterable[Mapping[str, Any]], context: Mapping[str, Any], tables: Iterable[ErroredTable]
) -> None:
    """As `call_back`, in a triggerer: each callback is an `AsyncCallback` as it is stored, and what its path names
    is imported here. An `AsyncCallback` without arguments has None as `kwargs` in Airflow 3.1, and an empty mapping
    later."""
    for table in tables:
        for callback in callbacks:
            try:
                await _acall(callback["path"], callback["kwargs"] or {}, {**context, **table.said})
            except Exception:
                log.exception(_FAILED, table.name)


def _call(callback: Callback, context: Mapping[str, Any]) -> None:
    """Calls one callback. A notifier renders its own fields in place, so each table gets a copy of it. A notifier that
    can only notify asynchronously is awaited."""
    from airflow.sdk import BaseNotifier

    if not callable(callback):
        asyncio.run(_acall(callback.path, callback.kwargs or {}, context))
    elif not isinstance(callback, BaseNotifier):
        callback(context)
    elif type(callback).notify is BaseNotifier.notify:
        asyncio.run(_notify(copy(callback), context))
    else:
        copy(callback)(context)


async def _acall(path: str, arguments: Mapping[str, Any], context: Mapping[str, Any]) -> None:
    """Imports what `path` names and awaits it: a notifier is made from the arguments; a function gets `context` beside
    its arguments."""
    from airflow.sdk import BaseNotifier

    named = await asyncio.to_thread(resolve_name, path)
    if isinstance(named, type) and issubclass(named, BaseNotifier):
        await _notify(named(**arguments), context)
    else:
        await named(**arguments, context=context)


async def _notify(notifier: Any, context: Mapping[str, Any]) -> None:
    notifier.context = context
    await notifier
