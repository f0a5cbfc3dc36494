"""The lake metadata of a pipeline: the state store that drives it, the epoch last claimed, the tables whose copies have
begun, and the tables that have landings.

The metadata is stored as a Delta table without rows at ``<uri>/_pgetl/<pipeline>``; one property of it holds all
entries as JSON. A change is a compare-and-set, like every other commit. The metadata records what no table's own log
can: which tables there are, the latest copy attempt of a table that does not exist yet, and which tables have a
position in their landing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Field, PrimitiveType, Schema

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TAKE_AWAY, Lake, safe, storage_error
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import TableLog
from airflow_provider_pgetl.engine.destinations.delta.shape import KIND, DeltaShape
from airflow_provider_pgetl.engine.destinations.protocol import Stamp
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName

FOLDER = "_pgetl"
_PROPERTY = "pgetl.book"
_PATIENCE = 50


@dataclass(frozen=True, slots=True)
class Begun:
    """The latest copy attempt that has begun for a table."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Entries:
    """What the metadata records. `landings`: the tables that have had a landing, ever since the pipeline began."""

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


class LakeMetadata:
    """The metadata of one pipeline in one lake."""

    def __init__(self, lake: Lake, pipeline: str) -> None:
        self._place = lake.place(f"{FOLDER}/{safe(pipeline)}")
        self._table: DeltaTable | None = None
        self._known: tuple[str, Entries] | None = None

    def read(self) -> Entries:
        """Returns the current entries; empty entries if none have been written yet."""
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
        """Returns the up-to-date table. If it cannot be updated, as after a restore to an earlier version, it is loaded
        anew."""
        if self._table is not None:
            try:
                self._table.update_incremental()
            except DeltaError:
                self._table = None
        if self._table is None:
            self._table = DeltaTable(self._place.uri, storage_options=self._place.storage_options)
        return self._table

    def expect_there(self) -> None:
        """Raises if the metadata is not in the lake any more. Needed because entries that were read once are cached."""
        if not self._place.list("_delta_log"):
            message = f"The lake could not be used at {self._place.uri}: what is recorded of the pipeline is not there."
            raise PgetlError(ErrorKind.CONNECTION, message, remedy="Check that the store is up and mounted.")

    def change(self, judge: Callable[[Entries], Entries]) -> Entries:
        """Replaces the entries by what `judge` returns for them, and returns the result. Repeats if another writer
        commits first."""
        for _ in range(_PATIENCE):
            before = self.read()
            after = judge(before)
            if after == before or self._write(after):
                return after
        message = f"The metadata of the lake at {self._place.uri} is being written to without end."
        raise PgetlError(ErrorKind.CONNECTION, message)

    def _write(self, entries: Entries) -> bool:
        """Returns False if another writer has committed first."""
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


# -- Which pipeline holds a table: checks of the target of a copy, and of a table that was published. ------------------
#
# A pipeline holds a table from the time it publishes a copy there until another pipeline does; the table's log records
# the holder. Each write of changes checks, on the snapshot that it commits on, that its pipeline still holds the table.

_STAGED = re.compile(r"_pgetl/|copy-[^/]+-\d+/")
_STRAY = "lies where there are files that are no Delta table's"
_OF_ANOTHER = "holds rows that another pipeline wrote"
_HISTORY = 'holds the entries of a history, which mode = "upsert" does not keep'


def in_the_way(log: TableLog, *, history: bool, fields: Sequence[Field] = ()) -> str | None:
    """Returns what a copy would replace and may not, as the end of a sentence; None if there is nothing. The log must
    have just been loaded. `history`: the copy only adds to an existing history, which is allowed if that has these
    `fields` with the same types. Otherwise a history is not replaced, because its entries could not be restored."""
    if not log.exists:
        return _STRAY if any(not _STAGED.match(path) for path in log.place.list("")) else None
    if not log.files():
        return None
    if log.held:
        return _history_of_ours(log, history, fields)
    if log.writer is None and log.was_published:
        return _OF_ANOTHER
    return fencing.rows_of(log.writer)


def _history_of_ours(log: TableLog, history: bool, fields: Sequence[Field]) -> str | None:
    if KIND not in log.column_names:
        return None
    if not history:
        return _HISTORY
    retyped = log.retyped(fields)
    return f"holds the entries of a history, in which {', '.join(retyped)} had another type" if retyped else None


def expect_free(log: TableLog, target: Target, shape: DeltaShape) -> None:
    """Raises if the target of a copy holds what the pipeline must not, or cannot, replace."""
    if log.unfit is not None:
        raise _unfit(target.schema.table, log.unfit)
    if log.exists and (columns := log.table.metadata().partition_columns):
        table = target.schema.table
        message = f"{table} in the destination is partitioned by {', '.join(columns)}; pgetl writes plain tables."
        remedy = "Remove it, or give the table another `destination`; then roll it back."
        raise PgetlError(ErrorKind.SCHEMA, message, remedy=remedy, table=str(table))
    holds = None if target.replaces else in_the_way(log, history=shape.history, fields=shape.fields)
    if holds is not None:
        raise fencing.refusal(target.schema.table, holds)


def lost(log: TableLog, begun: Begun, table: TableName) -> PgetlError | None:
    """Returns why the pipeline cannot write to the table that it has published; None if it can, or while the table is
    copied anew. The log must have just been loaded, and the table must have been published at least once."""
    if not log.exists:
        return fencing.dropped(table)
    record = log.log_state().record
    if record is not None and (record.position is None or record.attempt < begun.attempt):
        return None
    if log.held and record is not None:
        return _impaired(log, table)
    if log.held:
        return fencing.exchanged(table)
    return fencing.replaced(table, log.other_holder) if log.was_published else fencing.exchanged(table)


def _impaired(log: TableLog, table: TableName) -> PgetlError | None:
    """Reports `unfit` before `overruled`: what makes the table unfit must be removed before a copy can help."""
    if log.unfit is not None:
        return _unfit(table, log.unfit)
    return None if log.overruled is None else fencing.overruled(table, log.overruled)


def _unfit(table: TableName, what: str) -> PgetlError:
    message = f"{table} in the destination cannot be written to as it is: others have given it {what}."
    return PgetlError(ErrorKind.SCHEMA, message, remedy=TAKE_AWAY, table=str(table))
