"""One table's Delta log, and the only way in which pgetl commits to it.

Each commit of a pipeline carries, as application transactions, the complete record of the table: its position,
generation, copy attempts, and the epoch of the last writer. So the record is durable with the data or not at all, and
it survives in checkpoints. The holder, which is the pipeline that has published what the table holds, is there as well,
one for all pipelines: only a publication changes it, and only the holder adds and removes files.

A commit is checked against a snapshot that was loaded once, and is written as the version next to that snapshot, or not
at all (`Conflict`): any other commit made meanwhile wins. Retries by delta-rs are disabled, because it would check far
less: it accepts a lower version from a fresh handle, and a commit by another application. After a commit, the snapshot
is the committed version, whatever others have added on top of it: later commits are based on that version alone.

If a store does not respond in time, its client library repeats the request, and the store may then report that the
version exists already: the pipeline's own. So each commit carries a mark, and if the version exists, its commit is
read. Only a commit of another writer is a `Conflict`; after any other failure it is unknown whether the commit was
written.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Field, Schema
from deltalake.transaction import PostCommitHookProperties

from airflow_provider_pgetl.engine.destinations.delta.log.actions import (
    READERS_LISTED,
    WITH_FEATURES,
    Action,
    Add,
    Remove,
    lacking,
    now,
    overruling,
    properties_of,
    unfit,
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
    """Another writer has committed since the snapshot was loaded. Nothing of the failed commit is, or ever was, in the
    table: files made for it may be deleted."""


@dataclass(frozen=True, slots=True)
class Words:
    """The description of a table, for people who look at it: its comment and its properties."""

    comment: str | None = None
    properties: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class _Commit:
    """A commit to write: its version, the mark that identifies it as ours, and its application transactions."""

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
    """The log of one table, as seen by one pipeline. It is loaded lazily, and again by `refresh`.

    A folder may be removed, and the log of another table may begin in its place. So before a snapshot is brought up to
    date, the file of its version must be the one that was loaded: `_proof` is a part of it that no other file has.

    `_version` is the last known version of the log. After a commit of ours, the loaded table is behind it, until it is
    needed (`table`).
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
        more (`overruling`). Only a copy is committed on top of it, so that every later load of the log finds it."""
        self.unfit: str | None = None
        """What others have added to the table that pgetl does not support (`actions.unfit`)."""

    # -- the snapshot

    def refresh(self) -> bool:
        """Loads the newest snapshot; returns whether there is a table."""
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
        """Returns what has happened to the last commit known to be the pipeline's own, if another commit has replaced
        it in the same table; None if it has not. This happens if the store, or another writer, allows a version to be
        written twice. The restore of an older log is detected by positions instead."""
        found = self._file_of(version)
        if found is None or proof in found:
            return None
        return f"another version {version} in the place of the one that pgetl has written"

    def _judged(self) -> str | None:
        """Returns what makes the table unfit, for the snapshot that was just loaded."""
        with self._errors():
            protocol, schema = self.table.protocol(), self.table.schema()
            features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
            configuration = self.table.metadata().configuration
        return unfit(protocol.min_writer_version, features, configuration, json.loads(schema.to_json()))

    @property
    def is_impaired(self) -> bool:
        """Whether others have impaired the table, so that claims, adoptions and changes are not recorded in it."""
        return self.overruled is not None or self.unfit is not None

    def _is_same(self) -> bool:
        """Whether the log continues from the snapshot. False if unknown, as the file of its version has expired."""
        known = self._version is not None and self._proof != b""
        return known and self._proof in (self._file_of(self.version) or b"")

    def _look_at_others(self, before: int, commit: bytes | None) -> None:
        """Checks the commits since version `before` for overruling ones, from the newest back to one that is the
        pipeline's own or has expired."""
        version = self.version
        while version > before and commit and not self._transactions.are_in(transactions_in(commit)):
            self.overruled = overruling(commit) or self.overruled
            version -= 1
            commit = self._file_of(version)

    def _read_commit(self, version: int) -> bytes:
        """Reads the newest commit, by which the log is recognized later. If the commit is ours, it also has everything
        that is recorded, which otherwise takes a call to delta-rs for each number."""
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
        """Returns what is recorded now, and whether the table is `held`. On a local path the newest commit is enough,
        if it is ours, so that many tables can be checked without loading any of them."""
        commit = None if self.place.local is None else self._newest_commit(f"{self.place.local}/_delta_log")
        numbers = {} if commit is None else transactions_in(commit)
        if self._transactions.are_in(numbers) and HOLDER in numbers:
            return self._transactions.read(numbers), numbers[HOLDER] == self._number
        return (self.log_state(), self.held) if self.refresh() else (LogState(None), False)

    def _newest_commit(self, folder: str) -> bytes | None:
        """Finds the newest commit, starting from the last checkpoint; there is one every few commits. The file that
        names the checkpoint is only a hint: if it is wrong, the log is loaded instead."""
        checkpoint = self.place.read_if_there("_delta_log/_last_checkpoint")
        try:
            version = 0 if checkpoint is None else int(json.loads(checkpoint)["version"])
        except (ValueError, KeyError, TypeError):
            return None
        with self._errors(), suppress(FileNotFoundError):
            while os.stat(f"{folder}/{version + 1:020}.json"):  # noqa: PTH116 - faster, for very many tables
                version += 1
        return self._file_of(version)

    def _file_of(self, version: int) -> bytes | None:
        return self.place.read_if_there(f"_delta_log/{version:020}.json")

    @property
    def exists(self) -> bool:
        return self._version is not None

    @property
    def table(self) -> DeltaTable:
        """The snapshot as delta-rs has it. It is loaded again if a commit of ours has made it outdated."""
        if self._table is None or self._table.version() != self.version:
            self._load(self.version)
        assert self._table is not None, "it was just loaded"
        return self._table

    @property
    def version(self) -> int:
        assert self._version is not None, "asked of a table that was not loaded"
        return self._version

    def log_state(self) -> LogState:
        """Returns what is recorded of the table. It is read once for each version, because each of its numbers is a
        request to the store."""
        if not self.exists:
            return LogState(None)
        if self._known is None or self._known[0] != self.version:
            asked = {app: self.table.transaction_version(app) for app in self._transactions.apps}
            self._known = self.version, self._transactions.read(asked)
        return self._known[1]

    def merged(self) -> Boundary | None:
        """Returns the position up to which readers see the table's changes."""
        record = self.log_state().record
        return None if record is None else record.position

    @property
    def held(self) -> bool:
        """Whether this pipeline published what the table holds, and no other has since. Still true after `forget`."""
        return self._holder == self._number

    @property
    def other_holder(self) -> str | None:
        """The pipeline that published what the table holds, if it is another one and its name is known."""
        return None if self.held else self.writer

    @property
    def writer(self) -> str | None:
        """The pipeline that published what the table holds, if its name is known. The name is a property of the table.
        If the property could not be set, it may name an earlier pipeline, and is then ignored. It is used, however, for
        a table that no pipeline of this lake has published."""
        name = self.table.metadata().configuration.get(PIPELINE)
        return name if name and self._holder in (None, pipeline_number(name)) else None

    @property
    def was_published(self) -> bool:
        """Whether any pipeline has published what the table holds."""
        return self._holder is not None

    @property
    def _holder(self) -> int | None:
        """The number of the holder; None if there is none. It is read once for each version, as the log state is."""
        if self._known_holder is None or self._known_holder[0] != self.version:
            self._known_holder = self.version, self.table.transaction_version(HOLDER)
        return self._known_holder[1]

    def files(self) -> list[LiveFile]:
        return list(self.snapshot.files.values())

    @property
    def snapshot(self) -> Snapshot:
        """The files of the table, updated from commit to commit."""
        known = self._snapshot
        if known is not None and known.version == self.version:
            return known
        if known is None or known.version > self.version or not known.advance(self.place, self.version):
            known = Snapshot.load(self.place, self.version)
        self._snapshot = known
        return known

    # -- commits

    def create(self, fields: Sequence[Field], log_state: LogState, words: Words) -> None:
        """Creates the table's first version, without rows, because delta-rs cannot create a table with properties and
        rows in one commit.

        The table has the complete protocol that its columns need from the beginning. None of delta-rs' ways to raise it
        later is exact: adding a feature drops the features that the version before implied, and setting a property
        makes the protocol require `variantType` (see `allow` and `describe`)."""
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
        """Commits the next version. `publishes`: this pipeline becomes the holder of the table; without it, the
        pipeline must be the holder to change files. `overwrite`: these columns and the files added replace everything.
        """
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
        """Writes a commit as delta-rs would, but with deletion vectors, which delta-rs does not support in the commits
        of its callers. The first such commit also raises the table's protocol and sets its property."""
        snapshot = self.snapshot
        self._expect_removable(snapshot, actions)
        marks = any(isinstance(one, Add) and one.vector is not None for one in actions)
        raised = with_vectors(snapshot.protocol, snapshot.metadata) if marks else []
        with self._committing(log_state, publishes=publishes) as commit:
            self._write_commit(commit, "MERGE", raised, actions)
        for action in raised:
            snapshot.take(action)
        self._checkpoint(snapshot)

    def _write_commit(
        self, commit: _Commit, operation: str, raised: Sequence[Mapping[str, Any]], actions: Sequence[Action]
    ) -> None:
        """Writes the commit's file. `raised`: new metadata and a new protocol, if any."""
        said = [commit.info(operation), *raised, *commit.transactions_as_json, *(one.as_json() for one in actions)]
        content = "\n".join(json.dumps(one, separators=(",", ":"), ensure_ascii=False) for one in said)
        self.place.create(f"_delta_log/{commit.version:020}.json", content.encode())

    def _expect_removable(self, snapshot: Snapshot, actions: Sequence[Action]) -> None:
        """Raises if rows would be removed from an append-only table, as delta-rs does in its own commits."""
        only_adds = str(properties_of(snapshot.metadata).get("delta.appendOnly", "")).lower() == "true"
        if only_adds and any(isinstance(one, Remove) and one.data_change for one in actions):
            message = f"The Delta table at {self.place.uri} cannot be written to: the table is append-only."
            raise PgetlError(ErrorKind.SCHEMA, message, remedy=TAKE_AWAY)

    def _checkpoint(self, snapshot: Snapshot) -> None:
        """Creates a checkpoint when it is due. A failure is only logged, because the commit is written already and the
        next checkpoint makes up for it."""
        every = properties_of(snapshot.metadata).get("delta.checkpointInterval", _CHECKPOINT_EVERY)
        if self.version % max(int(every), 1) == 0:
            try:
                with self._errors():
                    self.table.create_checkpoint()
                    self.table.cleanup_metadata()
            except PgetlError as error:
                log.warning("%s: no checkpoint of version %d: %s", self.place.uri, self.version, error)

    def change(self, judge: Callable[[LogState], LogState], spent: Callable[[LiveFile], bool] | None = None) -> None:
        """Replaces what the log records by what `judge` returns for it, and removes the files that are `spent`. Repeats
        if others commit first. Begins with the loaded snapshot, and commits nothing if there is nothing to change."""
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
        """Raises the table's protocol to what the columns need. This cannot be in the same commit as the columns, and
        changes nothing for readers."""
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
        """Returns the columns that the table has with another type."""
        types = {field.name: field.type for field in self.table.schema().fields}
        return [field.name for field in fields if types.get(field.name, field.type) != field.type]

    def lacking(self, fields: Sequence[Field]) -> list[Field]:
        """Returns the columns that the table does not have."""
        present = set(self.column_names)
        return [field for field in fields if field.name not in present]

    def add_columns(self, fields: Sequence[Field], log_state: LogState) -> None:
        """Adds the columns that the table lacks. They must be nullable: they are null in existing rows."""
        lacking = self.lacking(fields)
        if lacking:
            self.alter_columns(log_state, added=lacking)

    def alter_columns(
        self,
        log_state: LogState,
        *,
        added: Sequence[Field] = (),
        renamed: Mapping[str, str] | None = None,
        retyped: Mapping[str, Field] | None = None,
        nullable: Collection[str] = (),
        dropped: Collection[str] = (),
        actions: Sequence[Action] = (),
    ) -> None:
        """Alters the columns, in one commit with the `actions`, which must replace all files if a column is renamed, is
        dropped, or gets another type (`retyped`, by the new names). `nullable`: columns that may be null from now
        on."""
        snapshot, names, types = self.snapshot, renamed or {}, retyped or {}
        self._expect_removable(snapshot, actions)
        schema = json.loads(snapshot.metadata["schemaString"])
        schema["fields"] = [field for field in schema["fields"] if field["name"] not in dropped]
        for field in schema["fields"]:
            field["nullable"] = field["nullable"] or field["name"] in nullable
            field["name"] = names.get(field["name"], field["name"])
            if field["name"] in types:
                field["type"] = json.loads(types[field["name"]].to_json())["type"]
        schema["fields"] += [json.loads(field.to_json()) for field in added]
        altered = {"metaData": {**snapshot.metadata, "schemaString": json.dumps(schema, separators=(",", ":"))}}
        with self._committing(log_state) as commit:
            self._write_commit(commit, "CHANGE COLUMNS", [altered], actions)
        snapshot.take(altered)
        snapshot.apply(actions)
        self._checkpoint(snapshot)

    def describe(self, words: Words, log_state: LogState) -> None:
        """Sets the properties that differ from those wanted, in a separate commit that changes no row. They are left
        unchanged if delta-rs would make the protocol require `variantType` of every reader permanently."""
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
        """Provides the commit that the block must write: the version next to the snapshot's. Once it is written, it is
        the snapshot. Raises `Conflict` if another writer has written that version."""
        version = 0 if self._version is None else self._version + 1
        holder = self._number if publishes else self._holder
        transactions = self._transactions.write(log_state)
        if holder == self._number:  # repeated in each commit, so that the newest commit has everything
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
