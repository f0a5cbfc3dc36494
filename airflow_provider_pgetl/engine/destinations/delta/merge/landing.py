"""Changes that land beside a table, to be merged into it elsewhere: `merge = "spark"`.

    worker ──net changes──▶ landing ──▶ merge, driven from anywhere ──files──▶ table ◀── readers
             durable: ack       <uri>/_pgetl/<pipeline>.landing/<schema>/<table>

Folding, decoding and all that a value can be refused for happens before the landing, as it does in the worker's own
merge; what lands is what that would have merged (`net_changes`). A landing is a Delta log of its own. It has a record,
as the table has, and only ever grows by whole batches; it declares no column, because it is nobody's table.

    <attempt>/<to>-<number>-<random>.parquet     part `number` of the batch that leads to `to`, after copy `attempt`
    <attempt>/<to>-merge-<random>.parquet        changes that tasks of a merge read

**What is where.** The landing counts if the copy that it follows is the one that the table holds (`published`, which
rises with each copy); else it is void, whoever wrote it and whenever. The position of a table that has a landing is the
landing's: that is what `positions` answers, what a batch must start from, what may be acknowledged, and what phases and
hand-over speak of. Ready says: every change up to the acknowledged one is durable in the lake. Readers of the table see
the state at its *merged* position, the one in the table's own log. Landed batches beyond it are pending.

A landing remembers up to where it was emptied (`Standing.cleared`). A table that stands before that was restored, and
what it lacks is nowhere: then the landing is void as well, and the table's position is its own, which tells that.

**Who may write.** A batch is judged against both logs, then against the book, and committed to the landing as the very
next version of what was judged; a claim changes the book, the table's log, then the landing's. So of a straggler and
its successor one collides or is told. `adopt` writes a table's new generation to both. A copy that begins takes the
position away in the table's log, and nothing can land until it is published. A straggler that looked before it began
may still land a batch: behind the copy of before, which is void from then on.

**Merging** needs no worker and no store. A merger takes pending batches in their order, makes new files of the table,
and commits them with the position that they lead to, as the next version of the table that it read (`landed_merge`). Of
two mergers one commits; the other finds its work done. One that overlaps a copy finds no position, or another copy's. A
claim or an adoption in between changes no file, so the merge is kept and committed again. A merger that dies before its
commit has done nothing; one that dies after it leaves landed batches that nobody takes for pending.

**What goes when.** Merged and void files leave the landing's log, then the store, when the next merge ends; so do files
that were never committed, once their table has come past them. A merger that is still reading one of them could not
commit any more, and looks again. `forget` voids and empties the landing:
what has not been merged is lost then, with the positions it stands for, and a log says so. `drop_table_for_copy` takes
the table's log, and with it the landing's meaning. Compaction and vacuum of the table are the merger's business: only a
merge makes files for it. The worker keeps its hands off.

**Schema.** Each part carries the schema it was decoded with, and a merge takes batches of one schema at a time.
Truncates, moved keys and absent values are parts of net changes, and are landed as such. Where one net cannot be put
behind another without a look into the table (`merging`), they are merged one after the other.

**Back to `merge = "worker"`.** The book remembers which tables have landed anything. A worker that merges itself first
merges what is pending, when it claims, and fences the landing off like the table.

`mode = "history"` is refused: a log is only added to, and there is nothing to merge.
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
from airflow_provider_pgetl.engine.destinations.delta.merge.merging import Changes
from airflow_provider_pgetl.engine.destinations.delta.merge.net_changes import Bag, Part, Truncated, write_part
from airflow_provider_pgetl.engine.destinations.delta.shape import DeltaShape
from airflow_provider_pgetl.engine.destinations.protocol import Misses
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.runtime.failpoints import reach

_PATIENCE = 20
# Also of a file that somebody died while writing, on a local path.
_NAME = re.compile(r"(\d+)/([0-9a-f]{16})-(\d{6}|merge)-[0-9a-f]{32}\.parquet(?:\.[0-9a-f]{8}\.writing)?")
_FIELDS = (Field("nothing", PrimitiveType("string")),)
_WORDS = Words("Written by pgetl: changes that wait to be merged into their table")


def landing_place(lake: Lake, pipeline: str, table: TableName) -> TableFolder:
    """No pipeline's id has a point in it."""
    return lake.place(f"_pgetl/{safe(pipeline)}.landing/{safe(table.schema)}/{safe(table.name)}")


@dataclass(frozen=True, slots=True, order=True)
class LandedFile:
    """What a file's name says of it. `number` is None for what a merge has laid out for its tasks."""

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
        """Whether nobody will need it, if the table has this record."""
        return self.attempt != record.published or (record.position is not None and self.to <= record.position)


@dataclass(frozen=True, slots=True)
class Pending:
    """One batch that has landed and is not merged: its parts in their order."""

    to: Boundary
    parts: tuple[str, ...]


class Landing:
    """What has landed for one table. `table` is the table's own log, which others may load as well."""

    def __init__(self, table: TableLog, log: TableLog) -> None:
        self.table = table
        self._log = log

    @property
    def place(self) -> TableFolder:
        return self._log.place

    # -- where it stands ----------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Load both, the table's first; whether there is a table."""
        there = self.table.refresh()
        self._log.refresh()
        return there

    def open(self) -> None:
        """Load both; the landing comes to exist by it."""
        self.refresh()
        if not self._log.exists:
            try:
                self._log.create(_FIELDS, LogState(None), _WORDS)
            except Conflict:
                self._log.refresh()

    def log_state(self) -> LogState:
        """What a batch must start from."""
        table, landed = self.table.log_state(), self._log.log_state()
        epoch = max(table.epoch, landed.epoch)
        if not self._counts:
            return LogState(table.record, epoch)
        assert table.record is not None, "what counts follows a copy"
        assert landed.record is not None, "what counts has a record"
        assert table.record.position is not None, "what counts follows a published copy"
        assert landed.record.position is not None, "what counts has a position"
        position = max(table.record.position, landed.record.position)
        return LogState(replace(table.record, generation=landed.record.generation, position=position), epoch)

    @property
    def _counts(self) -> bool:
        """Whether it follows the copy that the table holds, from where the table stands."""
        return self._follows and not self._lacks

    @property
    def _follows(self) -> bool:
        """Whether it follows the copy that the table holds."""
        table, landed = self.table.log_state().record, self._log.log_state().record
        if table is None or table.position is None or landed is None or landed.position is None:
            return False
        return landed.published == table.published

    @property
    def _lacks(self) -> bool:
        """Whether the table stands before what was merged into it and has been taken away here: it was restored."""
        record = self.table.log_state().record
        if not self._follows or record is None or record.position is None:
            return False
        return record.position < self._log.log_state().cleared

    def pending(self) -> list[Pending]:
        """In the order in which they are to be merged."""
        record = self.table.log_state().record
        if record is None or not self._counts:
            return []
        parts: dict[Boundary, list[str]] = {}
        for file in sorted(file for file in self._live() if not file.is_spent(record)):
            parts.setdefault(file.to, []).append(file.path)
        return [Pending(to, tuple(paths)) for to, paths in parts.items()]

    def merged(self) -> Boundary | None:
        """Where readers see the table; None while that cannot be said."""
        if self.pending():
            return self.table.merged()
        record = self.log_state().record
        return None if record is None else record.position

    def _live(self) -> list[LandedFile]:
        found = [LandedFile.read(one.path) for one in self._log.files()] if self._log.exists else []
        return [one for one in found if one is not None]

    # -- writing ------------------------------------------------------------------------------------------------------

    def commit(self, actions: Sequence[Action], log_state: LogState) -> None:
        """A batch. What a merger takes away meanwhile is no obstacle: the batch stands on nothing but the record."""
        judged = self.log_state()
        for _ in range(_PATIENCE):
            if self._lacks:
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
        """Have the landing's own log say what `judge` makes of what it says."""
        self._log.change(judge)

    def adopt(self, generation: int) -> None:
        """The table has been adopted already. From now on the landing says so too, so that whoever looked before
        collides with it."""

        def judge(landed: LogState) -> LogState:
            record = self.log_state().record
            if record is None:
                return landed
            return LogState(replace(record, generation=generation), landed.epoch, self._cleared(record))

        self.fence(judge)

    def _cleared(self, record: fencing.TableMetadata | None) -> Boundary:
        """Up to where the landing was emptied since the copy that the record is of."""
        landed = self._log.log_state()
        same = record is not None and landed.record is not None and landed.record.published == record.published
        return landed.cleared if same else START

    # -- taking away --------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Take away what is merged or void: from the log, then from the store."""
        self.refresh()
        record = self.table.log_state().record
        if record is None:
            return
        spent = {file.path for file in self._live() if file.is_spent(record)}
        if spent:
            merged = record.position if self._follows and record.position is not None else START

            def judge(landed: LogState) -> LogState:
                return replace(landed, cleared=max(landed.cleared, merged))

            self._log.change(judge, lambda file: file.path in spent)
        reach("merge.removed")
        self._sweep()

    def _sweep(self) -> None:
        """Listed first, judged by what is loaded later: nothing that has landed since is among it."""
        found = [LandedFile.read(path) for path in self.place.list("")]
        self.refresh()
        record = self.table.log_state().record
        live = {file.path for file in self._live()}
        for file in found:
            if file is not None and record is not None and file.path not in live and file.is_spent(record):
                self.place.delete(file.path)

    def forget(self) -> None:
        """Void all of it; whoever was about to land something collides with this. The table's log has forgotten
        already: or else somebody could land something behind this."""
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
    """What a batch brings of one table, as files of its landing: a `WorkingSet`'s place is taken by it."""

    def __init__(self, landing: Landing, shape: DeltaShape, log_state: LogState) -> None:
        record = log_state.record
        assert record is not None, "a batch that was judged has a record"
        assert record.position is not None, "a batch leads to a position"
        self._landing = landing
        self._shape = shape
        self._attempt, self._to = record.published, record.position
        self._adds: list[Add] = []

    def truncate(self) -> None:
        """What the batch brought before counts for nothing any more."""
        self.discard()
        self._land(Truncated())

    def append(self, tables: Iterable[pa.Table]) -> None:
        raise TypeError(f"a history does not land: {tables}")

    def merge(self, changes: Changes) -> Misses:
        """What hits no row is known when it is merged."""
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
        """What the table's files would refuse is refused before it is acknowledged."""
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
