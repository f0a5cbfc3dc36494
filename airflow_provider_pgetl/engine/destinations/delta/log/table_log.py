"""One table's Delta log, and the one way in which pgetl commits to it.

Each of a pipeline's commits carries, as application transactions, the whole of what is recorded of the table: its
position, generation, copy attempts, and the epoch of the last writer. So the record is durable with the data or not
at all, and it survives in checkpoints. Who has published what the table holds is there, too, one for all pipelines:
only a publication changes that, and only the holder adds and removes files.

A commit is checked against a snapshot that was loaded once, and lands as the very next version of that snapshot, or
not at all (`Conflict`): whoever else has written meanwhile, and whatever, wins. No retry is left to the library, which
would check far less than we do: it takes a lower version from a fresh handle, and a commit by another application.
Then the snapshot is the version committed, whatever others have put on top: commits that follow stand on it alone.

A store that does not answer in time is asked again, by the library that talks to it, and then may say that the version
is there already: ours. So a commit carries a mark, and whoever is in its way is looked at. Only what others wrote is a
`Conflict`; of any other failure nobody knows whether the commit has landed.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Field, Schema
from deltalake.transaction import PostCommitHookProperties

from airflow_provider_pgetl.engine.destinations.delta.log.actions import Action, Add, Remove, now, overruling, unfit
from airflow_provider_pgetl.engine.destinations.delta.log.features import (
    READERS_LISTED,
    WITH_FEATURES,
    lacking,
    properties_of,
    with_vectors,
)
from airflow_provider_pgetl.engine.destinations.delta.log.snapshot import LiveFile, Snapshot
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TAKE_AWAY, TableFolder, log_error
from airflow_provider_pgetl.engine.destinations.delta.log.transactions import (
    HOLDER,
    LogState,
    PipelineTransactions,
    pipeline_number,
    transactions_in,
)
from airflow_provider_pgetl.engine.destinations.delta.types import needs_zoneless
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary

log = logging.getLogger(__name__)

_PATIENCE = 20
_CHECKPOINT_EVERY = "20"
_CONFIGURATION = {"delta.checkpointInterval": _CHECKPOINT_EVERY}


class Conflict(Exception):
    """Somebody else has committed since the snapshot was loaded. Nothing of ours is in the table, nor ever was: files
    made for the commit may go."""


@dataclass(frozen=True, slots=True)
class Words:
    """Of what kind a table is, for people who look at it: its comment, and properties."""

    comment: str | None = None
    properties: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class _Commit:
    """A commit to be: its version, the mark by which it is known for ours, and its application transactions."""

    version: int
    mark: str
    transactions: Mapping[str, int]

    @property
    def properties(self) -> CommitProperties:
        said = [Transaction(app, number) for app, number in self.transactions.items()]
        return CommitProperties({_MARK: self.mark}, max_commit_retries=0, app_transactions=said)

    @property
    def transactions_as_json(self) -> list[dict[str, Any]]:
        return [{"txn": {"appId": app, "version": number}} for app, number in self.transactions.items()]

    def info(self, operation: str) -> dict[str, Any]:
        about = {"timestamp": now(), "operation": operation, "operationParameters": {}, "engineInfo": "pgetl"}
        return {"commitInfo": {**about, _MARK: self.mark}}


class TableLog:
    """The log of one table, as seen by one pipeline. Loaded lazily, and again by `refresh`.

    A folder may be removed, and another table's log may begin in its place. So before a snapshot is brought up to
    date, the file of its version must be the very one that was loaded: `_proof` is a part of it that no other has.

    `_version` is what the log is known to be at. After a commit of ours the loaded table is behind it, until asked for.
    """

    def __init__(self, place: TableFolder, pipeline: str) -> None:
        self.place = place
        self.pipeline = pipeline
        self._transactions = PipelineTransactions(pipeline)
        self._number = self._transactions.number
        self._table: DeltaTable | None = None
        self._version: int | None = None
        self._known: tuple[int, LogState] | None = None
        self._known_holder: tuple[int, int | None] | None = None
        self._snapshot: Snapshot | None = None
        self._proof = b""
        self._own: tuple[int, bytes] | None = None
        self.overruled: str | None = None
        """What others have done to the table since the last commit of the pipeline, if its rows cannot be relied on any
        more (`overruling`). Nothing is committed on top of it but a copy, so that everybody finds it."""
        self.unfit: str | None = None
        """What others have given the table that no writer of ours can keep to (`actions.unfit`)."""

    # -- the snapshot

    def refresh(self) -> bool:
        """Load the newest snapshot; whether there is a table."""
        with self._errors():
            before = self._version if self._is_same() else None
            last, own = self._table, self._own
            if before is not None and self._table is not None:
                self._table.update_incremental()
            else:
                self._table = self._version = self._known = self._known_holder = self._snapshot = None
                self._own = None
                self.overruled = self.unfit = None
                try:
                    self._table = DeltaTable(self.place.uri, storage_options=self.place.storage_options)
                except TableNotFoundError:
                    return False
        self._version = self._table.version()
        if self._version != before:
            commit = self._read_commit(self._version)
            self._look_at_others(-1 if before is None else before, commit)
            self.unfit = self._judged()
            if before is None and last is not None and own is not None and _is_of_one_table(last, self._table):
                self.overruled = self._undone(*own) or self.overruled
        return True

    def _undone(self, version: int, proof: bytes) -> str | None:
        """What has become of the last commit that is known to be the pipeline's own, if another has its place in the
        same table: the store, or somebody who writes to it, lets a version be written twice. Of an older log that was
        put back, positions tell."""
        found = self._file_of(version)
        if found is None or proof in found:
            return None
        return f"another version {version} in the place of the one that pgetl has written"

    def _judged(self) -> str | None:
        """Of the snapshot as it was just loaded."""
        with self._errors():
            protocol, schema = self.table.protocol(), self.table.schema()
            features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
            configuration = self.table.metadata().configuration
        return unfit(protocol.min_writer_version, features, configuration, json.loads(schema.to_json()))

    @property
    def is_impaired(self) -> bool:
        """By others: what is recorded of the table is not carried on."""
        return self.overruled is not None or self.unfit is not None

    def _is_same(self) -> bool:
        """Whether the log goes on from the snapshot. Where its file has expired, nobody knows."""
        known = self._version is not None and self._proof != b""
        return known and self._proof in (self._file_of(self.version) or b"")

    def _look_at_others(self, before: int, commit: bytes | None) -> None:
        """At all commits since the version, from the newest on, until one is the pipeline's own, or has expired."""
        version = self.version
        while version > before and commit and not self._transactions.are_in(transactions_in(commit)):
            self.overruled = overruling(commit) or self.overruled
            version -= 1
            commit = self._file_of(version)

    def _read_commit(self, version: int) -> bytes:
        """The newest commit, by which the log is known again. If it is ours, it says everything that is recorded, too,
        for which the library would otherwise be asked number by number."""
        commit = self._file_of(version) or b""
        self._proof = commit[-_PROOF_BYTES:]
        numbers = transactions_in(commit)
        if self._transactions.are_in(numbers):
            self._own = version, self._proof
            self._known = version, self._transactions.read(numbers)
        if HOLDER in numbers:
            self._known_holder = version, numbers[HOLDER]
        return commit

    def glance(self) -> tuple[LogState, bool]:
        """What is recorded now, and whether the table is `held`. On a local path the newest commit is enough, if it is
        ours: many tables can be asked without loading any."""
        commit = None if self.place.local is None else self._newest_commit(f"{self.place.local}/_delta_log")
        numbers = {} if commit is None else transactions_in(commit)
        if self._transactions.are_in(numbers) and HOLDER in numbers:
            return self._transactions.read(numbers), numbers[HOLDER] == self._number
        return (self.log_state(), self.held) if self.refresh() else (LogState(None), False)

    def _newest_commit(self, folder: str) -> bytes | None:
        """Read from the last checkpoint on: there is one every few commits. What names that is a hint alone: where it
        leads nowhere, the log is loaded."""
        checkpoint = self.place.read_if_there("_delta_log/_last_checkpoint")
        try:
            version = 0 if checkpoint is None else int(json.loads(checkpoint)["version"])
        except (ValueError, KeyError, TypeError):
            return None
        with self._errors(), suppress(FileNotFoundError):
            while os.stat(f"{folder}/{version + 1:020}.json"):  # noqa: PTH116 - of very many tables
                version += 1
        return self._file_of(version)

    def _file_of(self, version: int) -> bytes | None:
        return self.place.read_if_there(f"_delta_log/{version:020}.json")

    @property
    def exists(self) -> bool:
        return self._version is not None

    @property
    def table(self) -> DeltaTable:
        """The snapshot, which is loaded if a commit of ours has left it behind."""
        if self._table is None or self._table.version() != self.version:
            self._load(self.version)
        assert self._table is not None, "it was just loaded"
        return self._table

    @property
    def version(self) -> int:
        assert self._version is not None, "asked of a table that was not loaded"
        return self._version

    def log_state(self) -> LogState:
        """Read once for each version: each number of it is a request to the store."""
        if not self.exists:
            return LogState(None)
        if self._known is None or self._known[0] != self.version:
            asked = {app: self.table.transaction_version(app) for app in self._transactions.apps}
            self._known = self.version, self._transactions.read(asked)
        return self._known[1]

    def merged(self) -> Boundary | None:
        """Up to where readers see the table's changes."""
        record = self.log_state().record
        return None if record is None else record.position

    @property
    def held(self) -> bool:
        """Whether this pipeline published what the table holds, and none has since. Also of one that was forgotten."""
        return self._holder == self._number

    @property
    def other_holder(self) -> str | None:
        """The pipeline that published what the table holds, if it is another and is known by its name."""
        return None if self.held else self.writer

    @property
    def writer(self) -> str | None:
        """The pipeline that published what the table holds, if it is known by its name: where a property could not be
        set, it may be an earlier one's. Also of a table that no pipeline of this lake has published, but one names."""
        name = self.table.metadata().configuration.get(PIPELINE)
        return name if name and self._holder in (None, pipeline_number(name)) else None

    @property
    def was_published(self) -> bool:
        """Whether any pipeline has published what the table holds."""
        return self._holder is not None

    @property
    def _holder(self) -> int | None:
        """Read once for each version, as the standing is."""
        if self._known_holder is None or self._known_holder[0] != self.version:
            self._known_holder = self.version, self.table.transaction_version(HOLDER)
        return self._known_holder[1]

    def files(self) -> list[LiveFile]:
        return list(self.snapshot.files.values())

    @property
    def snapshot(self) -> Snapshot:
        """The files, which are kept from commit to commit."""
        known = self._snapshot
        if known is not None and known.version == self.version:
            return known
        if known is None or known.version > self.version or not known.advance(self.place, self.version):
            known = Snapshot.load(self.place, self.version)
        self._snapshot = known
        return known

    # -- commits

    def create(self, fields: Sequence[Field], log_state: LogState, words: Words) -> None:
        """The table's first version: all but its rows, which the library adds to no table that it gives properties.

        So it has the whole protocol that its columns need from the beginning. None of the library's ways to raise it
        later is exact: a feature that is added makes an end of those that came with the version before, and a property
        that is set demands `variantType` (see `allow` and `describe`)."""
        zoneless = needs_zoneless(fields)
        configuration = _CONFIGURATION | (WITH_FEATURES if zoneless else {}) | dict(words.properties or {})
        with self._committing(log_state, publishes=True) as commit:
            DeltaTable.create(
                self.place.uri,
                Schema(list(fields)),
                mode="error",
                description=words.comment,
                configuration=configuration,
                storage_options=self.place.storage_options,
                commit_properties=commit.properties,
                raise_if_key_not_exists=False,
            )

    def commit(
        self,
        actions: Sequence[Action],
        log_state: LogState,
        *,
        publishes: bool = False,
        overwrite: Sequence[Field] | None = None,
    ) -> None:
        """The next version. `publishes`: the table is this pipeline's from now on; without that, nobody's files change
        but the holder's. `overwrite`: these columns and the files added replace everything."""
        assert publishes or not actions or self.held, "files of a table that another has published"
        known = self._snapshot if overwrite is None else None
        follows = known is not None and known.version == self.version
        if any(one.vector is not None for one in actions):
            assert overwrite is None, "what replaces everything has no deleted rows"
            self._commit_vectors(actions, log_state, publishes=publishes)
        else:
            self._commit_files(actions, log_state, publishes=publishes, overwrite=overwrite)
        if known is not None and follows:
            known.apply(actions)

    def _commit_files(
        self, actions: Sequence[Action], log_state: LogState, *, publishes: bool, overwrite: Sequence[Field] | None
    ) -> None:
        schema = self.table.schema() if overwrite is None else Schema(list(overwrite))
        with self._committing(log_state, publishes=publishes) as commit:
            self.table.create_write_transaction(
                [one.for_library() for one in actions],
                "append" if overwrite is None else "overwrite",
                schema,
                commit_properties=commit.properties,
                post_commithook_properties=PostCommitHookProperties(create_checkpoint=True),
            )

    def _commit_vectors(self, actions: Sequence[Action], log_state: LogState, *, publishes: bool) -> None:
        """As the library would, but for deletion vectors, of which it knows nothing in a commit of its caller's. The
        table's protocol and its property are raised with the first one."""
        snapshot = self.snapshot
        self._expect_removable(snapshot, actions)
        marks = any(isinstance(one, Add) and one.vector is not None for one in actions)
        raised = with_vectors(snapshot.protocol, snapshot.metadata) if marks else []
        with self._committing(log_state, publishes=publishes) as commit:
            said = [commit.info("MERGE"), *raised, *commit.transactions_as_json, *(one.as_json() for one in actions)]
            content = "\n".join(json.dumps(one, separators=(",", ":"), ensure_ascii=False) for one in said)
            self.place.create(f"_delta_log/{commit.version:020}.json", content.encode())
        for action in raised:
            snapshot.take(action)
        self._checkpoint(snapshot)

    def _expect_removable(self, snapshot: Snapshot, actions: Sequence[Action]) -> None:
        """As the library does in commits of its own: no row leaves a table that is only to be added to."""
        only_adds = str(properties_of(snapshot.metadata).get("delta.appendOnly", "")).lower() == "true"
        if only_adds and any(isinstance(one, Remove) and one.data_change for one in actions):
            message = f"The Delta table at {self.place.uri} cannot be written to: the table is append-only."
            raise PgetlError(ErrorKind.SCHEMA, message, remedy=TAKE_AWAY)

    def _checkpoint(self, snapshot: Snapshot) -> None:
        """When it is due; one that fails is made up for by the next. The commit is there already."""
        every = properties_of(snapshot.metadata).get("delta.checkpointInterval", _CHECKPOINT_EVERY)
        if self.version % max(int(every), 1) == 0:
            try:
                with self._errors():
                    self.table.create_checkpoint()
                    self.table.cleanup_metadata()
            except PgetlError as error:
                log.warning("%s: no checkpoint of version %d: %s", self.place.uri, self.version, error)

    def change(self, judge: Callable[[LogState], LogState], spent: Callable[[LiveFile], bool] | None = None) -> None:
        """Have it say what `judge` makes of what it says, without the files that are `spent`, however often others come
        first. Begins with the snapshot as it is loaded, and commits nothing where there is nothing to change."""
        for _ in range(_PATIENCE):
            before = self.log_state()
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

    def allow(self, fields: Sequence[Field], log_state: LogState) -> None:
        """Raise the table's protocol to what the columns need. It cannot go along with the columns in one commit, and
        changes nothing for those who read."""
        features = lacking(self.table.protocol(), fields)
        if features:
            with self._committing(log_state) as commit:
                self.table.alter.add_feature(
                    features, allow_protocol_versions_increase=True, commit_properties=commit.properties
                )

    @property
    def column_names(self) -> list[str]:
        return [field.name for field in self.table.schema().fields]

    def retyped(self, fields: Sequence[Field]) -> list[str]:
        """Those of the columns that the table has with another type."""
        types = {field.name: field.type for field in self.table.schema().fields}
        return [field.name for field in fields if types.get(field.name, field.type) != field.type]

    def add_columns(self, fields: Sequence[Field], log_state: LogState) -> None:
        """Those that the table lacks; they may be null, as they are in the rows that it has."""
        lacking = [field for field in fields if field.name not in self.column_names]
        if lacking:
            with self._committing(log_state) as commit:
                self.table.alter.add_columns(lacking, commit_properties=commit.properties)

    def describe(self, words: Words, log_state: LogState) -> None:
        """Set the properties that differ from those wanted; a commit of its own, that changes no row. Where it would
        have the library demand `variantType` of every reader, for good, they stay as they are."""
        with self._errors():
            known, protocol = self.table.metadata().configuration, self.table.protocol()
        if protocol.min_reader_version >= READERS_LISTED and "variantType" not in (protocol.reader_features or ()):
            return
        changed = {name: value for name, value in (words.properties or {}).items() if known.get(name) != value}
        if changed:
            with self._committing(log_state) as commit:
                self.table.alter.set_table_properties(
                    changed, raise_if_not_exists=False, commit_properties=commit.properties
                )

    @contextmanager
    def _committing(self, log_state: LogState, *, publishes: bool = False) -> Iterator[_Commit]:
        """The version next to the snapshot's, to be written with these properties; the snapshot when it is there."""
        version = 0 if self._version is None else self._version + 1
        holder = self._number if publishes else self._holder
        transactions = self._transactions.write(log_state)
        if holder == self._number:  # said again with each commit: who reads the newest has read it all
            transactions[HOLDER] = self._number
        commit = _Commit(version, uuid.uuid4().hex, transactions)
        try:
            yield commit
        except (DeltaError, OSError) as error:
            if not isinstance(error, (CommitFailedError, FileExistsError)) and "already exists" not in str(error):
                raise log_error(self.place.uri, error) from error
            in_our_way = self._file_of(version)
            if in_our_way is None:
                raise log_error(self.place.uri, error) from error
            if commit.mark.encode() not in in_our_way:
                raise Conflict(str(error)) from error
        if publishes:
            self.overruled = None
        self._version, self._proof = version, commit.mark.encode()
        self._own = version, self._proof
        self._known, self._known_holder = (version, log_state), (version, holder)

    def _load(self, version: int) -> None:
        with self._errors():
            if self._table is None:
                self._table = DeltaTable(self.place.uri, version, self.place.storage_options)
            else:
                self._table.load_as_version(version)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError) as error:
            raise log_error(self.place.uri, error) from error


def _is_of_one_table(one: DeltaTable, other: DeltaTable) -> bool:
    return bool(one.metadata().id == other.metadata().id)


PIPELINE = "pgetl.pipeline"
_MARK = "pgetl.commit"
_PROOF_BYTES = 4096
