"""What a stream has told the store, until it is read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_pgetl.engine.phases import Event
from airflow_provider_pgetl.engine.tables import TableName


@dataclass(slots=True)
class Outbox:
    """Events sent to the store and not read back yet, each with the time to send it again.

    `together`: what went in one record is taken or refused as one. So when one of its tables is seen to have changed,
    all are open again; news of other tables says nothing about what is still on its way.
    """

    events: dict[TableName, Event] = field(default_factory=dict)
    due: dict[TableName, float] = field(default_factory=dict)
    together: dict[TableName, frozenset[TableName]] = field(default_factory=dict)

    def wants(self, table: TableName, event: Event, now: float) -> bool:
        return self.events.get(table) != event or self.due[table] <= now

    def sent(self, events: Mapping[TableName, Event], again_at: float) -> None:
        self.events.update(events)
        self.due.update(dict.fromkeys(events, again_at))
        self.together.update(dict.fromkeys(events, frozenset(events)))

    def settle(self, changed: frozenset[TableName]) -> None:
        if not changed:
            return
        for table in [table for table in self.events if not changed.isdisjoint(self.together[table])]:
            del self.events[table], self.due[table], self.together[table]
