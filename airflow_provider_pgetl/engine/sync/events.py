"""Events for many tables, told to the store at once: one that somebody moved meanwhile refuses for itself alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_provider_pgetl.engine.phases import Event, Refused, TableState
from airflow_provider_pgetl.engine.reports import Noted
from airflow_provider_pgetl.engine.sync.desk import states_of
from airflow_provider_pgetl.engine.sync.site import Site
from airflow_provider_pgetl.engine.table_names import written
from airflow_provider_pgetl.engine.tables import TableName


def apply_judged(
    site: Site, judge: Callable[[Mapping[TableName, TableState]], Mapping[TableName, Event]]
) -> list[TableName]:
    """What is judged of the tables as they are now; the tables concerned."""
    site.store.load()
    events = judge(states_of(site.store))
    apply_each(site, events)
    return sorted(events)


def apply_each(site: Site, events: Mapping[TableName, Event]) -> None:
    if not events:
        return
    for table, answer in site.store.apply_each(events).items():
        if isinstance(answer, Refused):
            what = type(events[table]).__name__
            site.observer(Noted("info", f"{what} of {written(table)} was refused: {answer.why}.", table))
