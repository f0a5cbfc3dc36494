"""One table's Delta log, and the one way in which pgetl commits to it.

Each of a pipeline's commits carries, as application transactions, the whole of what is recorded of the table: its
position, generation, copy attempts, and the epoch of the last writer. So the record is durable with the data or not
at all, and it survives in checkpoints. Who has published what the table holds is there, too, one for all pipelines.

A commit is checked against a snapshot that was loaded once, and lands as the very next version of that snapshot, or
not at all (`Conflict`): whoever else has written meanwhile, and whatever, wins. No retry is left to the library, which
would check far less than we do: it takes a lower version from a fresh handle, and a commit by another application.
Then the snapshot is the version committed, whatever others have put on top: commits that follow stand on it alone.

A store that does not answer in time is asked again, by the library that talks to it, and then may say that the version
is there already: ours. So a commit carries a mark, and whoever is in its way is looked at. Only what others wrote is a
`Conflict`; of any other failure nobody knows whether the commit has landed.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Field, Schema
from deltalake.transaction import AddAction, PostCommitHookProperties, RemoveAction, create_table_with_add_actions

from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.delta.storage import Place, storage_error
from airflow_provider_pgetl.engine.destinations.delta.types import needs_zoneless
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.positions import START, Boundary

_PATIENCE = 20
_CHECKPOINT_EVERY = "20"
_CONFIGURATION = {"delta.checkpointInterval": _CHECKPOINT_EVERY}


class Conflict(Exception):
    """Somebody else has committed since the snapshot was loaded. Nothing of ours is in the table, nor ever was: files
    made for the commit may go."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a table's log says of a pipeline: the record, and the epoch that wrote last (0: none yet)."""

    record: fencing.Record | None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file of the snapshot. `stats` has the log's bounds as dicts, `min` and `max`."""

    path: str
    size: int
    rows: int | None
    stats: Mapping[str, Any]

    def remove(self, *, data_change: bool = True) -> RemoveAction:
        return RemoveAction(self.path, data_change, int(time.time() * 1000), self.size, {})


@dataclass(frozen=True, slots=True)
class Words:
    """Of what kind a table is, for people who look at it: its comment, and properties."""

    comment: str | None = None
    properties: Mapping[str, str] | None = None


class TableLog:
    """The log of one table, as seen by one pipeline. Loaded lazily, and again by `refresh`."""

    def __init__(self, place: Place, pipeline: str) -> None:
        self.place = place
        self.pipeline = pipeline
        self._ids = {name: f"pgetl/{pipeline}/{name}" for name in _FIELDS}
        self._number = int.from_bytes(hashlib.blake2b(pipeline.encode(), digest_size=7).digest())
        self._table: DeltaTable | None = None
        self._known: tuple[int, Standing] | None = None

    # -- the snapshot

    def refresh(self) -> bool:
        """Load the newest snapshot; whether there is a table."""
        with self._errors():
            if self._table is not None:
                self._table.update_incremental()
                return True
            try:
                self._table = DeltaTable(self.place.uri, storage_options=self.place.storage_options)
            except TableNotFoundError:
                return False
        return True

    @property
    def exists(self) -> bool:
        return self._table is not None

    @property
    def table(self) -> DeltaTable:
        assert self._table is not None, "asked of a table that was not loaded"
        return self._table

    @property
    def version(self) -> int:
        return self.table.version()

    def standing(self) -> Standing:
        """Read once for each version: each number of it is a request to the store."""
        if self._table is None:
            return Standing(None)
        if self._known is None or self._known[0] != self.version:
            self._known = self.version, self._read_standing()
        return self._known[1]

    def merged(self) -> Boundary | None:
        """Up to where readers see the table's changes."""
        record = self.standing().record
        return None if record is None else record.position

    def _read_standing(self) -> Standing:
        found = {name: self.table.transaction_version(app) for name, app in self._ids.items()}
        epoch = found["epoch"] or 0
        if found["generation"] in (None, _FORGOTTEN):
            return Standing(None, epoch)
        published = found["published"] or 0
        position = Boundary(found["position"] or 0) if published else None
        return Standing(fencing.Record(found["generation"], found["attempt"] or 0, published, position), epoch)

    @property
    def held(self) -> bool:
        """Whether this pipeline published what the table holds, and none has since. Also of one that was forgotten."""
        return self.table.transaction_version(_HOLDER) == self._number

    def files(self) -> list[LiveFile]:
        with self._errors():
            actions = pa.table(self.table.get_add_actions()).to_pylist()
        return [
            LiveFile(
                one["path"],
                one["size_bytes"],
                one.get("num_records"),
                {"min": one.get("min"), "max": one.get("max")},
            )
            for one in actions
        ]

    # -- commits

    def create(self, fields: Sequence[Field], adds: Sequence[AddAction], standing: Standing, words: Words) -> None:
        """The table's first version, with its rows in it. Properties are for `describe`: Delta must not know them."""
        with self._committing(standing) as properties:
            create_table_with_add_actions(
                self.place.uri,
                Schema(list(fields)),
                list(adds),
                mode="error",
                description=words.comment,
                configuration=_CONFIGURATION,
                storage_options=self.place.storage_options,
                commit_properties=properties,
            )

    def commit(
        self,
        actions: Sequence[AddAction | RemoveAction],
        standing: Standing,
        *,
        overwrite: Sequence[Field] | None = None,
    ) -> None:
        """The next version. `overwrite`: these columns and the files added replace everything."""
        schema = self.table.schema() if overwrite is None else Schema(list(overwrite))
        with self._committing(standing) as properties:
            self.table.create_write_transaction(
                list(actions),
                "append" if overwrite is None else "overwrite",
                schema,
                commit_properties=properties,
                post_commithook_properties=PostCommitHookProperties(create_checkpoint=True),
            )

    def change(self, judge: Callable[[Standing], Standing], spent: Callable[[LiveFile], bool] | None = None) -> None:
        """Have it say what `judge` makes of what it says, without the files that are `spent`, however often others come
        first. Begins with the snapshot as it is loaded, and commits nothing where there is nothing to change."""
        for _ in range(_PATIENCE):
            before = self.standing()
            after = judge(before)
            removes = [] if spent is None else [one.remove() for one in self.files() if spent(one)]
            if after == before and not removes:
                return
            try:
                self.commit(removes, after)
                return
            except Conflict:
                self.refresh()
        raise PgetlError(ErrorKind.CONNECTION, f"Others commit to {self.place.uri} without end.")

    def allow(self, fields: Sequence[Field], standing: Standing) -> None:
        """Raise the table's protocol to what the columns need. It cannot go along with the columns in one commit, and
        changes nothing for those who read."""
        known = self.table.protocol().reader_features or []
        if needs_zoneless(fields) and "timestampNtz" not in known:
            with self._committing(standing) as properties:
                self.table.alter.add_feature(
                    TableFeatures.TimestampWithoutTimezone,
                    allow_protocol_versions_increase=True,
                    commit_properties=properties,
                )

    @property
    def column_names(self) -> list[str]:
        return [field.name for field in self.table.schema().fields]

    def retyped(self, fields: Sequence[Field]) -> list[str]:
        """Those of the columns that the table has with another type."""
        types = {field.name: field.type for field in self.table.schema().fields}
        return [field.name for field in fields if types.get(field.name, field.type) != field.type]

    def add_columns(self, fields: Sequence[Field], standing: Standing) -> None:
        """Those that the table lacks; they may be null, as they are in the rows that it has."""
        lacking = [field for field in fields if field.name not in self.column_names]
        if lacking:
            with self._committing(standing) as properties:
                self.table.alter.add_columns(lacking, commit_properties=properties)

    def describe(self, words: Words, standing: Standing) -> None:
        """Set the properties that differ from those wanted; a commit of its own, that changes no row."""
        with self._errors():
            known = self.table.metadata().configuration
        changed = {name: value for name, value in (words.properties or {}).items() if known.get(name) != value}
        if changed:
            with self._committing(standing) as properties:
                self.table.alter.set_table_properties(changed, raise_if_not_exists=False, commit_properties=properties)

    @contextmanager
    def _committing(self, standing: Standing) -> Iterator[CommitProperties]:
        """The version next to the snapshot's, to be written with these properties; loaded when it is there."""
        version = 0 if self._table is None else self.version + 1
        mark = uuid.uuid4().hex
        try:
            yield CommitProperties({_MARK: mark}, max_commit_retries=0, app_transactions=self._transactions(standing))
        except (DeltaError, OSError) as error:
            if not isinstance(error, CommitFailedError) and "already exists" not in str(error):
                raise storage_error(self.place.uri, error) from error
            in_our_way = self.place.read_if_there(f"_delta_log/{version:020}.json")
            if in_our_way is None:
                raise storage_error(self.place.uri, error) from error
            if mark.encode() not in in_our_way:
                raise Conflict(str(error)) from error
        self._load(version)
        self._known = version, standing

    def _load(self, version: int) -> None:
        with self._errors():
            if self._table is None:
                self._table = DeltaTable(self.place.uri, version, self.place.storage_options)
            else:
                self._table.load_as_version(version)

    def _transactions(self, standing: Standing) -> list[Transaction]:
        record = standing.record
        numbers = {"epoch": standing.epoch, "generation": _FORGOTTEN}
        if record is not None:
            position = START if record.position is None else record.position
            numbers |= {
                "position": position.lsn,
                "generation": record.generation,
                "attempt": record.attempt,
                "published": 0 if record.position is None else record.published,
            }
        transactions = [Transaction(self._ids[name], number) for name, number in numbers.items()]
        if record is not None and record.position is not None:
            transactions.append(Transaction(_HOLDER, self._number))
        return transactions

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError) as error:
            raise storage_error(self.place.uri, error) from error


_MARK = "pgetl.commit"
_FORGOTTEN = -1  # a transaction of the log can be overwritten, not removed
_HOLDER = "pgetl/holder"  # the pipeline as a number, since transactions hold nothing else
_FIELDS = ("position", "generation", "attempt", "published", "epoch")
