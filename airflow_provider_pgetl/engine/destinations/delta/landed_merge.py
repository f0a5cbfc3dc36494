"""What has landed becomes the table's: slices of whole batches, each one commit.

    pending batches ──parts──▶ nets ──▶ new files of the table ──commit, position──▶ next slice … ──▶ clear the landing

A slice is as many batches as amount to `SLICE_BYTES` of net changes, and never less than one: what is held in memory is
bounded, and a merge of a long landing makes headway that lasts. A batch that is larger is merged piece by piece, and
committed as a whole.

A commit lands on the very snapshot that was merged into. If others have committed meanwhile, but neither the table's
files nor its position have changed, the files made are as good as before, and it is committed again. Otherwise they are
thrown away, and the slice begins anew on what is there: whoever has merged the same is found to have done so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.delta import occupancy
from airflow_provider_pgetl.engine.destinations.delta.actions import Action
from airflow_provider_pgetl.engine.destinations.delta.book import Begun
from airflow_provider_pgetl.engine.destinations.delta.landing import Landing, Pending
from airflow_provider_pgetl.engine.destinations.delta.log import Conflict, Standing, TableLog
from airflow_provider_pgetl.engine.destinations.delta.merging import Changes
from airflow_provider_pgetl.engine.destinations.delta.net_files import Bag, NetFile, Part, Truncated, read_part
from airflow_provider_pgetl.engine.destinations.delta.nets import Nets
from airflow_provider_pgetl.engine.destinations.delta.shape import Shape
from airflow_provider_pgetl.engine.destinations.delta.spread_set import SpreadSet
from airflow_provider_pgetl.engine.destinations.delta.storage import Place
from airflow_provider_pgetl.engine.destinations.protocol import Merged, Misses, Spread
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.failpoints import reach
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.tables import TableSchema

log = logging.getLogger(__name__)

SLICE_BYTES = 96 << 20
_PATIENCE = 10


class LandedMerge:
    """For one table. `misses` is what hit no row, `shape` the table's once anything was merged."""

    def __init__(self, landing: Landing, shape_of: Callable[[TableSchema], Shape], spread: Spread) -> None:
        self._landing = landing
        self._table = landing.table
        self._shape_of = shape_of
        self._spread = spread
        self.misses = Misses()
        self.shape: Shape | None = None

    def run(self, stopped: Callable[[], bool]) -> Merged:
        """Until nothing is pending, or one looks whether to go on, and is not to."""
        batches = conflicts = 0
        while not stopped() and (pending := self._pending()):
            taken = self._merge_slice(pending)
            batches, conflicts = batches + taken, 0 if taken else conflicts + 1
            if conflicts == _PATIENCE:
                message = f"Others commit to {self._table.place.uri} without end."
                raise PgetlError(ErrorKind.CONNECTION, message)
        self._landing.clear()
        reach("merge.cleared")
        return Merged(batches, self._landing.merged())

    def _pending(self) -> list[Pending]:
        self._landing.refresh()
        return self._landing.pending()

    def _merge_slice(self, pending: Sequence[Pending]) -> int:
        """How many batches are in the table by it; none if somebody else came first."""
        before = self._table.standing()
        try:
            with self._told_of_others(before):
                slice_ = self._begin(pending[0], before)
                taken = slice_.take(pending)
            reach("merge.files_written")
            slice_.commit(before, pending[taken - 1].to)
        except Conflict as conflict:
            log.info("The merge into %s begins anew: %s", self._table.place.uri, conflict)
            return 0
        reach("merge.committed")
        self.misses += slice_.misses
        return taken

    def _begin(self, first: Pending, before: Standing) -> _Slice:
        record = before.record
        assert record is not None, "what is pending follows a copy"
        schema = _read_landed(self._landing.place, first.parts[0]).schema
        self.shape = shape = self._shape_of(schema)
        error = occupancy.lost(self._table, Begun(record.generation, record.attempt), schema.table)
        if error is not None:
            raise error
        aside = self._landing.place, lambda: self._landing.new_path(record.published, first.to)
        layout = shape.layout_in(self._table)
        files = SpreadSet(self._table.place, schema, layout, self._table.files(), self._spread, aside)
        return _Slice(self._landing, shape, files)

    @contextmanager
    def _told_of_others(self, before: Standing) -> Iterator[None]:
        """A file that is gone may have been taken away by whoever has merged it, or has copied the table."""
        try:
            yield
        except PgetlError as error:
            self._landing.refresh()
            if _same_rows(self._table.standing(), before):
                raise
            raise Conflict(error.message) from error


class _Slice:
    """Batches on their way into the files of the table. Nothing of it remains if it fails before its commit."""

    def __init__(self, landing: Landing, shape: Shape, files: SpreadSet) -> None:
        self._place = landing.place
        self._table: TableLog = landing.table
        self._shape = shape
        self._files = files
        self._nets = Nets(self._merge, SLICE_BYTES)
        self.misses = Misses()
        self._is_full = False

    def take(self, pending: Sequence[Pending]) -> int:
        """How many batches were merged."""
        try:
            taken = 0
            for batch in pending:
                if self._is_full or not self._take_batch(batch):
                    break
                taken += 1
            self._nets.settle()
        except BaseException:
            self._files.discard()
            raise
        return taken

    def _take_batch(self, batch: Pending) -> bool:
        """False if it has another schema than those before."""
        for path in batch.parts:
            found = _read_landed(self._place, path)
            if found.schema != self._shape.schema:
                return False
            self._take(found.part)
        return True

    def _take(self, part: Part) -> None:
        match part:
            case Truncated():
                self._nets.drop()
                self._files.truncate()
            case Bag(deletes, inserts):
                self.misses += self._files.merge_bag(deletes, inserts)
            case Changes():
                self._nets.add(part)

    def _merge(self, net: Changes) -> None:
        self._is_full = True
        self.misses += self._files.merge(net)

    def commit(self, before: Standing, to: Boundary) -> None:
        """If nobody knows whether the table has the files, they stay."""
        paths = self._paths()
        actions = self._actions()
        for _ in range(_PATIENCE):
            assert before.record is not None, "what is merged into has a record"
            try:
                self._table.commit(actions, Standing(replace(before.record, position=to), before.epoch))
                return
            except Conflict:
                self._table.refresh()
                after = self._table.standing()
                if not self._table.held or not _same_rows(after, before) or self._paths() != paths:
                    self._files.discard()
                    raise
                before = after
        self._files.discard()
        raise Conflict("Others commit without end.")

    def _actions(self) -> list[Action]:
        try:
            return self._files.actions()
        except Conflict:
            self._files.discard()
            raise

    def _paths(self) -> set[str]:
        return {one.path for one in self._table.files()}


def _read_landed(place: Place, path: str) -> NetFile:
    """Of a landing that is away altogether nothing is lost."""
    try:
        return read_part(place, path)
    except PgetlError as error:
        if not isinstance(error.__cause__, FileNotFoundError) or not place.list("_delta_log"):
            raise
        message = f"{path} at {place.uri}, which has landed and is not merged, is not there any more."
        raise PgetlError(ErrorKind.DAMAGED, message) from error


def _same_rows(one: Standing, other: Standing) -> bool:
    """Whether the rows are of the same copy and position, whatever the epoch and the generation."""
    return _rows(one.record) == _rows(other.record)


def _rows(record: fencing.Record | None) -> tuple[int, Boundary | None] | None:
    return None if record is None else (record.published, record.position)
