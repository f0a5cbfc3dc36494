"""Which tables a store object has come to show differently since somebody last asked.

Names gather in a set while nobody asks, so that any number of changes of one table costs its reader one look.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from airflow_provider_pgetl.engine.tables import TableName


class ChangedTables:
    """Filled by the store whose `changed_tables` made it; for one reader, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: set[TableName] = set()

    def add(self, names: Iterable[TableName]) -> None:
        with self._lock:
            self._names.update(names)

    def take(self) -> frozenset[TableName]:
        """The tables since the last call: of each the record, a schema or its place in the destination may differ."""
        with self._lock:
            names, self._names = self._names, set()
        return frozenset(names)
