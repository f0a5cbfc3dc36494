"""Verifies tables, round by round.

A round is a `Moment`: its tables are compared one after the other, both sides of a table at the same time. Rows that
were changed between the two snapshots are postponed, and only they are compared in the next round; so is a table whose
file was replaced while it was read. Rows that were changed in every round are not compared, and are reported.

A difference that was found is final: every change before the round's position was in the destination, and no later
change was counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Event

import numpy as np
import pyarrow as pa

from airflow_provider_pgetl.engine.changes.hashing import Hashes
from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.destinations.protocol import Part, Readable
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import Noted
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.engine.model.verification import Difference, TableVerified, Verified, bounded
from airflow_provider_pgetl.engine.state.store import TableRecord
from airflow_provider_pgetl.engine.verify import comparing
from airflow_provider_pgetl.engine.verify.comparing import (
    Digest,
    Selection,
    Side,
    Suspects,
    key_hashes,
    sample_of,
    sort_out,
)
from airflow_provider_pgetl.engine.verify.moment import (
    Moment,
    MovedOn,
    Pair,
    Patience,
    opened_moment,
    unreadable,
    unready,
)
from airflow_provider_pgetl.engine.verify.server_sums import equal_rows
from airflow_provider_pgetl.engine.verify.source_rows import ReadLimit

_PASSES = (ErrorKind.TABLE_REWRITTEN, ErrorKind.SCHEMA)
_EVERY_ROUND = "they were changed meanwhile."
_STOPPED = "the verification was stopped before."
_NOT_STREAMED = "they were changed since, and the pipeline is not streamed; `pgetl run FILE` brings them."


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """`share`: the share of all keys to compare. `rate`: the maximum number of rows read at the source per second.
    `shown`: the number of differing rows to report of each table. `rounds`: the maximum number of rounds, in each of
    which the rows that were changed meanwhile are compared again."""

    share: float = 1.0
    rate: float | None = None
    shown: int = 20
    rounds: int = 5
    patience: Patience = field(default_factory=Patience)


class _Stopped(Exception):
    """The verification was stopped."""


@dataclass(slots=True)
class _Work:
    """The progress of one table through the rounds. `left`: the texts of keys that are still to be compared; None for
    all."""

    found: TableVerified
    left: pa.Table | None = None
    done: bool = False

    def skip(self, error: PgetlError) -> None:
        """Records that the table is not compared, unless a later round compares it."""
        self.found = replace(self.found, verdict="not compared", why=error.message, remedy=error.remedy)
        self.done = error.kind not in _PASSES


def verify(
    context: PipelineContext,
    tables: Collection[TableName] | None = None,
    options: VerifyOptions = VerifyOptions(),
    stopped: Callable[[], bool] = lambda: False,
) -> Verified:
    """Compares these tables of the pipeline with the source, by default all of them."""
    _expect_readable(context)
    context.store.load()
    records = context.store.tables()
    works = {
        table: _Work(TableVerified(table, "not compared", why=_STOPPED, share=options.share))
        for table in sorted(records if tables is None else tables)
    }
    for table, work in works.items():
        error = unready(records.get(table), table)
        if error is not None:
            work.skip(error)
            work.done = True
    rate = ReadLimit(options.rate)
    for number in range(1, options.rounds + 1):
        open_tables = {table: records[table] for table, work in works.items() if not work.done}
        if not open_tables or stopped():
            break
        try:
            _round(context, number, open_tables, works, rate, options, stopped)
        except MovedOn as error:
            for table in open_tables:
                works[table].skip(error)
        except _Stopped:
            break
        context.store.load()
        records = context.store.tables()
    found = [_closed(work) for work in works.values()]
    _keep(context, found)
    return Verified(found, options.share)


def _keep(context: PipelineContext, found: Sequence[TableVerified]) -> None:
    """Stores the results. Comparing took longer than storing does, so a store that fails is no reason to lose them."""
    try:
        context.store.record_verified([bounded(one) for one in found if one.verdict != "not compared"])
    except PgetlError as error:
        context.observer(Noted("warning", f"The results could not be stored: {error.message}"))


def _round(
    context: PipelineContext,
    number: int,
    records: Mapping[TableName, TableRecord],
    works: Mapping[TableName, _Work],
    rate: ReadLimit,
    options: VerifyOptions,
    stopped: Callable[[], bool],
) -> None:
    with opened_moment(context, records, rate, options.patience, stopped) as moment:
        for table, pair in moment.tables.items():
            if stopped():
                return
            work = works[table]
            work.found = replace(work.found, rounds=number, generation=records[table].state.generation)
            if isinstance(pair, PgetlError):
                work.skip(pair)
                continue
            try:
                _compare(work, pair, moment, options, stopped)
            except PgetlError as error:
                if error.transient:
                    raise
                work.skip(error)
            if not work.done:
                context.observer(Noted("info", f"{_closed(work).in_words()} These are compared again.", table))


def _compare(work: _Work, pair: Pair, moment: Moment, options: VerifyOptions, stopped: Callable[[], bool]) -> None:
    schema = pair.source.published.schema
    key = schema.key or schema.names
    if pair.changed.whole:
        message = f"{written(work.found.table)} was truncated or altered meanwhile, or very much of it was changed."
        work.skip(PgetlError(ErrorKind.TABLE_REWRITTEN, message))
        work.done = pair.awaited
        return
    changed = pair.changed.keys
    only = None if work.left is None else np.unique(_hashes(pair, work.left, key))
    first = work.found.position or moment.position
    selection = Selection(only, np.unique(_hashes(pair, changed, key)), sample_of(options.share, first.lsn))
    asked = None if work.left is None else work.left.group_by(work.left.column_names).aggregate([])
    equal = None if only is not None or selection.sample is not None else equal_rows(pair, changed, _both, stopped)
    source, destination = _sides(pair, asked, selection)
    rows, suspects, differences = (
        _differences(source, destination, max(0, options.shown - len(work.found.differences)), stopped)
        if equal is None
        else (equal, Suspects(), [])
    )
    differences = [
        replace(one, position=moment.position, destination_position=pair.destination.position) for one in differences
    ]
    computed = (one.column.name for one in schema.generated)
    unread = pair.source.published.unread
    not_compared = (name for name in (*schema.names, *computed, *unread) if name not in pair.compared)
    work.found = replace(work.found, left_out=tuple(not_compared))
    work.found = _added(work.found, moment.position, moment.at, rows, suspects, differences, keyless=not schema.key)
    _put_back(work, pair, changed, replace(selection, without=None))


def _sides(pair: Pair, keys: pa.Table | None, selection: Selection) -> tuple[Side, Side]:
    there = pair.destination.parts(keys)
    here = [_as_held(pair, part) for part in pair.source.parts(keys)]
    names = pair.compared
    key = tuple(name for name in pair.source.published.schema.key or names if name in names)
    return Side(here, key, selection), Side(there, key, selection)


def _as_held(pair: Pair, part: Part) -> Part:
    def read() -> Iterator[pa.Table]:
        for texts in part():
            yield pair.destination.held(texts)

    return read


def _hashes(pair: Pair, keys: pa.Table, key: Sequence[str]) -> Hashes:
    held = pair.destination.held(keys)
    return key_hashes(held, [name for name in key if name in held.column_names])


def _differences(
    source: Side, destination: Side, shown: int, stopped: Callable[[], bool]
) -> tuple[int, Suspects, list[Difference]]:
    """Returns the number of rows at the source, and the differences."""
    here, there = Digest(), Digest()
    _both(lambda stop: _digest(here, source, stop), lambda stop: _digest(there, destination, stop), stopped)
    if not here.unlike(there).any():
        return here.rows, Suspects(), []

    def read(one: Callable[[], None], other: Callable[[], None]) -> None:
        _both(lambda _: one(), lambda _: other(), stopped)

    found = sort_out(source, destination, (here, there), shown, read)
    return here.rows, found, list(comparing.differences(source, destination, found))[:shown]


def _digest(digest: Digest, side: Side, ended: Callable[[], bool]) -> None:
    """Checks `ended` only between parts: a part that is begun is read to its end."""
    for number in range(len(side.parts)):
        if ended():
            return
        for _, keys, rows in side.rows_of(number):
            digest.add(keys, rows)


def _both(
    one: Callable[[Callable[[], bool]], None],
    other: Callable[[Callable[[], bool]], None],
    stopped: Callable[[], bool],
) -> None:
    """Runs both at the same time. If one fails, or when `stopped`, the other ends soon, and no result counts."""
    failed = Event()

    def ended() -> bool:
        return failed.is_set() or stopped()

    def run(work: Callable[[Callable[[], bool]], None]) -> None:
        try:
            work(ended)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(2, "pgetl verify") as pool:
        futures = [pool.submit(run, work) for work in (one, other)]
    for future in futures:
        future.result()
    if stopped():
        raise _Stopped


def _added(
    found: TableVerified,
    position: Boundary,
    at: float,
    rows: int,
    suspects: Suspects,
    differences: Sequence[Difference],
    *,
    keyless: bool,
) -> TableVerified:
    """Returns `found` with the results of a round. The first position is kept, because rows that were changed after it
    are compared as well."""
    different = found.different + suspects.total
    return replace(
        found,
        verdict="different" if different else "equal",
        position=found.position or position,
        at=found.at or at,
        rows=found.rows + rows,
        missing=found.missing + suspects.missing,
        extra=found.extra + suspects.extra,
        changed=found.changed + suspects.changed,
        differences=(*found.differences, *differences),
        keyless=keyless,
        why=None,
        remedy=None,
    )


def _put_back(work: _Work, pair: Pair, changed: pa.Table, selection: Selection) -> None:
    """Postpones the changed rows, as far as they belong to the selection, to the next round."""
    hashes = _hashes(pair, changed, changed.column_names)
    chosen = selection.of(hashes)
    kept = changed if chosen is None else changed.filter(pa.array(chosen))
    count = len(np.unique(hashes if chosen is None else hashes[chosen]))
    work.left = kept
    work.done = pair.awaited or not count
    why = _NOT_STREAMED if pair.awaited else _EVERY_ROUND
    work.found = replace(work.found, skipped=count, why=why if count else None)


def _closed(work: _Work) -> TableVerified:
    """Returns the final result. A table that was compared in one round counts as compared, except for rows that later
    rounds could not compare."""
    found = work.found
    if found.verdict != "not compared" or found.position is None:
        return found
    left = 0 if work.left is None else work.left.num_rows
    return replace(found, verdict="different" if found.different else "equal", skipped=left)


def _expect_readable(context: PipelineContext) -> None:
    with context.destination("verify") as destination:
        if not isinstance(destination, Readable):
            raise unreadable(destination)
