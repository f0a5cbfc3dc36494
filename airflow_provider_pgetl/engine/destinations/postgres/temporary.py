"""Temporary tables that take in rows on their way into a table.

They are made once per connection, with which they go, and list of column types, and emptied by the server at each
commit, so that a batch normally costs no DDL. A transaction that needs more of one kind than there are makes more, up
to a limit, beyond which the oldest is emptied and used again: whoever took it is done with it by then.

Columns are called c0, c1, …
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from airflow_provider_pgetl.engine.changes.tuples import COPY_BINARY_HEADER, COPY_BINARY_TRAILER, Tuples
from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.tables import TableName

_OF_ONE_KIND = 4
_KINDS = 48
Types = tuple[str, ...]


@dataclass
class _Kind:
    """The tables of one list of types; the first `used` are taken in this transaction."""

    names: list[str] = field(default_factory=list)
    used: int = 0


class TemporaryTables:
    """The temporary tables of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kinds: OrderedDict[Types, _Kind] = OrderedDict()
        self._connection: object = None
        self._number = 0
        self._fresh: list[Types] = []

    def begin(self) -> None:
        """A transaction starts, on the connection that the session has now; on a new one nothing is there yet."""
        if self._connection is not self._session.connection:
            self._connection = self._session.connection
            self._kinds.clear()
        self._fresh.clear()
        for kind in self._kinds.values():
            kind.used = 0

    def rolled_back(self) -> None:
        """What this transaction made is gone."""
        for types in self._fresh:
            self._kinds.pop(types, None)
        self._fresh.clear()

    def take(self, types: Types) -> str:
        """An empty table with columns of these types, for the caller's next statements."""
        kind = self._kinds.setdefault(types, _Kind())
        self._kinds.move_to_end(types)
        if kind.used >= _OF_ONE_KIND:
            name = kind.names[kind.used % _OF_ONE_KIND]
            self._session.execute(f"truncate {name}")
        elif kind.used < len(kind.names):
            name = kind.names[kind.used]
        else:
            name = self._make(types, kind)
        kind.used += 1
        return name

    def until_commit(self, definition: str) -> str:
        """A table of its own for this transaction alone; `definition` is what follows its name in CREATE TABLE."""
        self._number += 1
        self._session.execute(f"create temporary table pgetl_{self._number} {definition}")
        return f"pg_temp.pgetl_{self._number}"

    def load(self, types: Types, tuples: Tuples, table: TableName, *, keep: bool = False) -> str:
        """A table of these types that holds the tuples; with `keep`, until the transaction's end for sure."""
        name = self.until_commit(f"({_columns(types)}) on commit drop") if keep else self.take(types)
        self._session.copy_in(f"copy {name} from stdin (format binary)", binary_file(tuples), table)
        return name

    def _make(self, types: Types, kind: _Kind) -> str:
        self._number += 1
        name = f"pg_temp.pgetl_{self._number}"
        statement = f"create temporary table pgetl_{self._number} ({_columns(types)}) on commit delete rows"
        self._session.execute(statement)
        kind.names.append(name)
        self._fresh.append(types)
        self._drop_surplus()
        return name

    def _drop_surplus(self) -> None:
        for types in list(self._kinds)[: max(len(self._kinds) - _KINDS, 0)]:
            if not self._kinds[types].used:
                self._session.execute(f"drop table if exists {', '.join(self._kinds.pop(types).names)}")


def _columns(types: Types) -> str:
    return ", ".join(f"c{at} {sql_type}" for at, sql_type in enumerate(types))


def binary_file(tuples: Tuples) -> Iterable[bytes]:
    """The tuples as a whole COPY BINARY stream."""
    yield COPY_BINARY_HEADER
    yield from tuples.copy_binary()
    yield COPY_BINARY_TRAILER
