"""What a lake remembers of a pipeline beside its tables: from which state store it is driven, the epoch last
claimed, which tables have been begun, and beside which of them changes have landed.

A Delta table without rows at ``<uri>/_pgetl/<pipeline>``, whose one property holds it all as JSON. Changing it is a
compare-and-set like every other commit. It answers questions that no table's own log can: which tables there are, which
copy attempt is the latest of a table that does not exist yet, and where else than in its own log a table's position is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Field, PrimitiveType, Schema

from airflow_provider_pgetl.engine.destinations.delta.storage import Lake, safe, storage_error
from airflow_provider_pgetl.engine.destinations.protocol import Stamp
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.tables import TableName

FOLDER = "_pgetl"
_PROPERTY = "pgetl.book"
_PATIENCE = 50


@dataclass(frozen=True, slots=True)
class Begun:
    """The latest copy attempt of a table that has begun."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Entries:
    """`landings`: the tables beside which changes have landed, ever since the pipeline began."""

    epoch: int | None = None
    tables: Mapping[TableName, Begun] = field(default_factory=dict)
    landings: frozenset[TableName] = frozenset()
    stamp: Stamp | None = None

    def with_table(self, table: TableName, begun: Begun) -> Entries:
        return replace(self, tables={**self.tables, table: begun})

    def with_tables(self, begun: Mapping[TableName, Begun]) -> Entries:
        return replace(self, tables={**self.tables, **begun})

    def with_landings(self, tables: Iterable[TableName]) -> Entries:
        return replace(self, landings=self.landings.union(tables))

    def as_json(self) -> str:
        tables = [[name.schema, name.name, one.generation, one.attempt] for name, one in sorted(self.tables.items())]
        landings = [[name.schema, name.name] for name in sorted(self.landings)]
        stamp = None if self.stamp is None else [self.stamp.instance, self.stamp.changes]
        return json.dumps({"epoch": self.epoch, "tables": tables, "landings": landings, "stamp": stamp})

    @classmethod
    def from_json(cls, text: str) -> Entries:
        data = json.loads(text)
        tables = {TableName(schema, name): Begun(*numbers) for schema, name, *numbers in data["tables"]}
        landings = frozenset(TableName(*name) for name in data.get("landings", ()))
        stamp = data.get("stamp")
        return cls(data["epoch"], tables, landings, None if stamp is None else Stamp(*stamp))


class Book:
    """One pipeline's book in one lake."""

    def __init__(self, lake: Lake, pipeline: str) -> None:
        self._place = lake.place(f"{FOLDER}/{safe(pipeline)}")
        self._table: DeltaTable | None = None
        self._known: tuple[str, Entries] | None = None

    def read(self) -> Entries:
        """As it is now; nothing has been written in it at first."""
        try:
            text = self._load().metadata().configuration.get(_PROPERTY)
        except TableNotFoundError:
            return Entries()
        except (DeltaError, OSError) as error:
            raise storage_error(self._place.uri, error) from error
        if text is None:
            return Entries()
        if self._known is None or self._known[0] != text:
            self._known = text, Entries.from_json(text)
        return self._known[1]

    def _load(self) -> DeltaTable:
        """One that ends before what is loaded was restored, and is another."""
        if self._table is not None:
            try:
                self._table.update_incremental()
            except DeltaError:
                self._table = None
        if self._table is None:
            self._table = DeltaTable(self._place.uri, storage_options=self._place.storage_options)
        return self._table

    def expect_there(self) -> None:
        """Refuse to go on in a lake that has lost it: entries that were read once are remembered."""
        if not self._place.list("_delta_log"):
            message = f"The lake could not be used at {self._place.uri}: what is recorded of the pipeline is not there."
            raise PgetlError(ErrorKind.CONNECTION, message, remedy="Check that the store is up and mounted.")

    def change(self, judge: Callable[[Entries], Entries]) -> Entries:
        """Have `judge` make of the entries what they are to be, as often as others come first."""
        for _ in range(_PATIENCE):
            before = self.read()
            after = judge(before)
            if after == before or self._write(after):
                return after
        message = f"The book of the lake at {self._place.uri} is being written to without end."
        raise PgetlError(ErrorKind.CONNECTION, message)

    def _write(self, entries: Entries) -> bool:
        """False if somebody else has written first."""
        properties = CommitProperties(max_commit_retries=0)
        wanted = {_PROPERTY: entries.as_json()}
        try:
            if self._table is None:
                DeltaTable.create(
                    self._place.uri,
                    Schema([Field("nothing", PrimitiveType("string"))]),
                    mode="error",
                    description="Written by pgetl: copies begun and the epoch of this pipeline's worker",
                    configuration=wanted,
                    storage_options=self._place.storage_options,
                    commit_properties=properties,
                    raise_if_key_not_exists=False,
                )
            else:
                self._table.alter.set_table_properties(wanted, raise_if_not_exists=False, commit_properties=properties)
        except CommitFailedError:
            return False
        except (DeltaError, OSError) as error:
            if "already exists" in str(error):
                return False
            raise storage_error(self._place.uri, error) from error
        return True
