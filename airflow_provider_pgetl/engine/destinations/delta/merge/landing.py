"""Landings: changes are written beside their table, to be merged into it by another process (`merge = "spark"`).

    worker ──net changes──▶ landing ──▶ merge, in any process ──files──▶ table ◀── readers
             durable: ack       <uri>/_pgetl/<pipeline>.landing/<schema>/<table>

Folding, decoding, and every check that can refuse a value happen before changes land, as in the worker's own merge;
what lands is what the worker would have merged (`net_changes`). A landing is a Delta log of its own. It has a record,
like the table, and grows only by whole batches. It declares none of the table's columns, because it is not read as a
table.

    <attempt>/<to>-<number>-<random>.parquet     part `number` of the batch that leads to `to`, after copy `attempt`
    <attempt>/<to>-merge-<random>.parquet        changes that tasks of a merge read

**Positions.** A landing is valid if it follows the copy that the table holds (`published`, which rises with each copy);
otherwise it is void, whichever writer made it, and whenever. The position of a table with a landing is the landing's:
it is what `positions` returns, what a batch must start from, and what may be acknowledged; phases and hand-over refer
to it. Ready means: every change up to the acknowledged one is durable in the lake. Readers of the table see the state
at its *merged* position, which is the one in the table's own log. Landed batches beyond it are pending.

A landing records up to where it was emptied (`LogState.cleared`). A table at an earlier position was restored, and the
changes that it lacks do not exist any more: then the landing is void as well, and the table's position is that of its
own log, which shows the restore.

**Who may write.** A batch is checked against both logs, then against the lake metadata, and is committed to the landing
as the version next to the one that was checked. A claim changes the lake metadata, the table's log, then the landing's.
So a fenced-off writer either conflicts with its successor, or is refused by `fencing`. `adopt` writes a table's new
generation to both logs. A copy that begins removes the position in the table's log, and nothing can land until it is
published. A writer that has checked before the copy began may still land a batch, which follows the previous copy and
is void once the new copy is published.

**Merging** needs neither a worker nor a state store. A merger takes pending batches in their order, makes new files of
the table, and commits them with the position that they lead to, as the version next to the one that it read
(`landed_merge`). Of two mergers only one commits; the other finds that its work is done. A merger that overlaps a copy
finds no position, or that of another copy. A claim or an adoption in between changes no file, so the merge is kept and
committed again. A merger that is killed before its commit has changed nothing; one that is killed after it leaves
landed batches that are not pending any more.

**Cleanup.** Merged and void files are removed from the landing's log, then from the store, when the next merge ends. So
are files that were never committed, once the table's position is past them. A merger that is still reading one of them
could not commit any more, and starts again. `forget` voids and empties the landing: what has not been merged is lost
then, with the positions it stands for, and a warning is logged. `drop_table_for_copy` deletes the table's log, which
voids the landing. Compaction and vacuum of the table are done by the merger, because only merges make files of the
table; the worker does neither.

**Schema.** Each part carries the schema with which it was decoded, and a merge takes batches of one schema at a time.
Truncates, moved keys and absent values are parts of net changes, and land as such. If two nets cannot be composed
without reading the table (`file_merge`), they are merged one after the other.

**Back to `merge = "worker"`.** The lake metadata lists the tables that have landings. When a worker that merges by
itself claims, it first fences the landing off like the table, and merges what is pending.

`mode = "history"` is refused: a history is only appended to, so there is nothing to merge.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from deltalake.schema import Field, PrimitiveType

from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.delta.log.actions import Action, Add
from airflow_provider_pgetl.engine.destinations.delta.log.storage import Lake, TableFolder, safe
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import Conflict, TableLog, Words
from airflow_provider_pgetl.engine.destinations.delta.log.transactions import LogState
from airflow_provider_pgetl.engine.destinations.delta.merge.file_merge import Changes
from airflow_provider_pgetl.engine.destinations.delta.merge.net_changes import Bag, Part, Truncated, write_part
from airflow_provider_pgetl.engine.destinations.delta.shape import DeltaShape
from airflow_provider_pgetl.engine.destinations.protocol import Misses
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.runtime.processes import reach

_PATIENCE = 20
# Also matches a file whose writer was killed while writing it, on a local path.
_NAME = re.compile(r"(\d+)/([0-9a-f]{16})-(\d{6}|merge)-[0-9a-f]{32}\.parquet(?:\.[0-9a-f]{8}\.writing)?")
_FIELDS = (Field("nothing", PrimitiveType("string")),)
_WORDS = Words("Written by pgetl: changes that wait to be merged into their table")


def landing_place(lake: Lake, pipeline: str, table: TableName) -> TableFolder:
    """Returns the landing's folder. It is no other pipeline's folder, because ids of pipelines contain no dot."""
    return lake.place(f"_pgetl/{safe(pipeline)}.landing/{safe(table.schema)}/{safe(table.name)}")


@dataclass(frozen=True, slots=True, order=True)
class LandedFile:
    """A file of a landing, as its name describes it. `number` is None for changes that a merge wrote for its tasks."""

    attempt: int
    to: Boundary
    number: int | None
    path: str

    @classmethod
    def read(cls, path: str) -> LandedFile | None:
        match = _NAME.fullmatch(path)
        if match is None:
            return None
        number = None if match[3] == "merge" else int(match[3])
        return cls(int(match[1]), Boundary(int(match[2], 16)), number, path)

    def is_spent(self, record: fencing.TableMetadata) -> bool:
        """Whether the file is not needed any more, given the table's record."""
        return self.attempt != record.published or (record.position is not None and self.to <= record.position)


@dataclass(frozen=True, slots=True)
class Pending:
    """One batch that has landed and is not merged yet: its parts in their order."""

    to: Boundary
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Followed:
    """A landing and the copy that it follows. `table` is the record in the table's log, whose position is `merged`;
    `record` is combined from both logs. `is_restored`: the table lacks changes that were merged into it and removed
    from the landing."""

    table: fencing.TableMetadata
    merged: Boundary
    record: fencing.TableMetadata
    is_restored: bool


class Landing:
    """The landing of one table. `table` is the table's own log, which other objects may refresh as well."""

    def __init__(self, table: TableLog, log: TableLog) -> None:
        self.table = table
        self._log = log

    @property
    def place(self) -> TableFolder:
        return self._log.place

    # -- position -----------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Loads both logs, the table's first; returns whether there is a table."""
        there = self.table.refresh()
        self._log.refresh()
        return there

    def open(self) -> None:
        """Loads both logs; creates the landing if there is none."""
        self.refresh()
        if not self._log.exists:
            try:
                self._log.create(_FIELDS, LogState(None), _WORDS)
            except Conflict:
                self._log.refresh()

    def log_state(self) -> LogState:
        """Returns the state that a batch must start from, combined from both logs."""
        table, landed = self.table.log_state(), self._log.log_state()
        followed = self._followed()
        record = table.record if followed is None or followed.is_restored else followed.record
        return LogState(record, max(table.epoch, landed.epoch))

    def _followed(self) -> _Followed | None:
        """Returns None unless the landing follows the copy that the table holds."""
        table, log_state = self.table.log_state().record, self._log.log_state()
        landed = log_state.record
        if table is None or table.position is None or landed is None or landed.position is None:
            return None
        if landed.published != table.published:
            return None
        combined = replace(table, generation=landed.generation, position=max(table.position, landed.position))
        return _Followed(table, table.position, combined, is_restored=table.position < log_state.cleared)

    def pending(self) -> list[Pending]:
        """Returns the pending batches, in the order in which they must be merged."""
        followed = self._followed()
        if followed is None or followed.is_restored:
            return []
        parts: dict[Boundary, list[str]] = {}
        for file in sorted(file for file in self._live() if not file.is_spent(followed.table)):
            parts.setdefault(file.to, []).append(file.path)
        return [Pending(to, tuple(paths)) for to, paths in parts.items()]

    def merged(self) -> Boundary | None:
        """Returns the position that readers of the table see; None if it is unknown."""
        if self.pending():
            return self.table.merged()
        record = self.log_state().record
        return None if record is None else record.position

    def _live(self) -> list[LandedFile]:
        found = [LandedFile.read(one.path) for one in self._log.files()] if self._log.exists else []
        return [one for one in found if one is not None]

    # -- writing ------------------------------------------------------------------------------------------------------

    def commit(self, actions: Sequence[Action], log_state: LogState) -> None:
        """Commits a batch. If a merger removes files meanwhile, the commit is repeated, as only the record matters. A
        landing that is not there is created, and the batch judged again: another writer of the epoch has recorded it
        in the lake metadata and not created it yet, or its folder was removed."""
        if not self._log.exists:
            self.open()
            raise Conflict(f"the landing at {self.place.uri} was created")
        judged = self.log_state()
        for _ in range(_PATIENCE):
            followed = self._followed()
            if followed is not None and followed.is_restored:
                raise self._restored()
            try:
                self._log.commit(actions, replace(log_state, cleared=self._cleared(log_state.record)))
                return
            except Conflict:
                self.refresh()
                if self.log_state() != judged:
                    raise
        raise self._busy()

    def fence(self, judge: Callable[[LogState], LogState]) -> None:
        """Replaces what the landing's own log records by what `judge` returns for it."""
        self._log.change(judge)

    def adopt(self, generation: int) -> None:
        """Records the generation in the landing's log. The table must have been adopted already. A writer that has
        read the log before conflicts with this commit."""

        def judge(landed: LogState) -> LogState:
            record = self.log_state().record
            if record is None:
                return landed
            return LogState(replace(record, generation=generation), landed.epoch, self._cleared(record))

        self.fence(judge)

    def _cleared(self, record: fencing.TableMetadata | None) -> Boundary:
        """Returns up to where the landing was emptied since the copy of the record."""
        landed = self._log.log_state()
        same = record is not None and landed.record is not None and landed.record.published == record.published
        return landed.cleared if same else START

    # -- cleanup ------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Removes what is merged or void: from the log, then from the store."""
        self.refresh()
        record = self.table.log_state().record
        if record is None:
            return
        spent = {file.path for file in self._live() if file.is_spent(record)}
        if spent:
            followed = self._followed()
            merged = START if followed is None else followed.merged

            def judge(landed: LogState) -> LogState:
                return replace(landed, cleared=max(landed.cleared, merged))

            self._log.change(judge, lambda file: file.path in spent)
        reach("merge.removed")
        self._clean_up()

    def _clean_up(self) -> None:
        """Deletes files that are neither live nor needed. Files are listed before the logs are loaded, so that no file
        that has landed since is deleted."""
        found = [LandedFile.read(path) for path in self.place.list("")]
        self.refresh()
        record = self.table.log_state().record
        live = {file.path for file in self._live()}
        for file in found:
            if file is not None and record is not None and file.path not in live and file.is_spent(record):
                self.place.delete(file.path)

    def forget(self) -> None:
        """Voids and empties the landing. A writer that is about to land a batch conflicts with this commit. The table's
        log must have forgotten the pipeline already: otherwise a batch could land after this commit."""
        self.open()
        for _ in range(_PATIENCE):
            try:
                self._log.commit([one.remove() for one in self._log.files()], LogState(None))
                break
            except Conflict:
                self._log.refresh()
        else:
            raise self._busy()
        for path in self.place.list(""):
            if LandedFile.read(path) is not None:
                self.place.delete(path)

    def new_path(self, attempt: int, to: Boundary, number: int | None = None) -> str:
        kind = "merge" if number is None else f"{number:06d}"
        return f"{attempt}/{to.lsn:016x}-{kind}-{uuid.uuid4().hex}.parquet"

    def _restored(self) -> PgetlError:
        message = (
            f"The table at {self.table.place.uri} stands before changes that were merged into it: it was restored."
        )
        return PgetlError(ErrorKind.DAMAGED, message)

    def _busy(self) -> PgetlError:
        return PgetlError(ErrorKind.CONNECTION, f"Others write to the landing at {self.place.uri} without end.")


class LandingSet:
    """Writes the changes of a batch to one table as files of its landing; used instead of a `WorkingSet`."""

    def __init__(self, landing: Landing, shape: DeltaShape, attempt: int, to: Boundary) -> None:
        self._landing = landing
        self._shape = shape
        self._attempt, self._to = attempt, to
        self._adds: list[Add] = []

    def truncate(self) -> None:
        """Discards the parts of the batch before the truncate, which makes them void."""
        self.discard()
        self._land(Truncated())

    def append(self, tables: Iterable[pa.Table]) -> None:
        raise TypeError(f"a history does not land: {tables}")

    def merge(self, changes: Changes) -> Misses:
        """Lands the changes. Returns no misses: which changes match no row is known only when they are merged."""
        self._expect_present(changes)
        if changes:
            self._land(changes)
        return Misses()

    def merge_bag(self, deletes: pa.Table, inserts: pa.Table) -> Misses:
        if deletes.num_rows or inserts.num_rows:
            self._land(Bag(deletes, inserts))
        return Misses()

    def _land(self, part: Part) -> None:
        path = self._landing.new_path(self._attempt, self._to, len(self._adds))
        self._adds.append(write_part(self._landing.place, path, self._shape.schema, part))

    def _expect_present(self, changes: Changes) -> None:
        """Raises for nulls that the table's files would refuse, before the changes are acknowledged."""
        for name in self._shape.layout.required:
            absent = int(changes.absent[name].sum()) if name in changes.absent else 0
            nulls = changes.rows.column(name).null_count - absent + changes.inserts.column(name).null_count
            if nulls:
                raise PgetlError(ErrorKind.CONSTRAINT, f"Column {name} is declared not null, but a null has come.")

    def actions(self) -> list[Action]:
        return list(self._adds)

    def discard(self) -> None:
        for one in self._adds:
            self._landing.place.delete(one.path)
        self._adds = []
