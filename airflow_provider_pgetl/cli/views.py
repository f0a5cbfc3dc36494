"""The results of verbs as lines: findings, comparisons and status. Pure; `app` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from airflow_provider_pgetl.cli.board import phase_words, printable, table_words
from airflow_provider_pgetl.engine.model.errors import TABLE_ERRORED
from airflow_provider_pgetl.engine.model.findings import Finding
from airflow_provider_pgetl.engine.model.quantities import format_size
from airflow_provider_pgetl.engine.runtime.processes import in_words
from airflow_provider_pgetl.engine.state.status import SlotStatus, Status, TableStatus
from airflow_provider_pgetl.engine.verify.results import Difference, Verified

_UNKNOWN = "–"


def check_words(errors: Sequence[Finding]) -> str:
    """Returns a summary of the findings."""
    forbidding = sum(error.exit_code != TABLE_ERRORED for error in errors)
    if forbidding:
        return f"{forbidding} of these forbid a run"
    if errors:
        return f"nothing forbids a run, but {len(errors)} of these would make their tables Errored"
    return "nothing stands in the way of a run"


def status_lines(status: Status) -> Iterator[str]:
    """Yields tables, slots, the worker that streams, and what could not be read."""
    yield f"Pipeline {status.pipeline}, instance {status.instance}, epoch {status.epoch}"
    yield _streaming(status)
    yield ""
    yield from _tables(status.tables)
    if status.slots is not None:
        yield ""
        yield from _slots(status.slots)
    for word, sentences in (("warning", status.warnings), ("unknown", status.unknown)):
        for sentence in sentences:
            yield ""
            yield f"{word}: {printable(sentence)}"


def verified_lines(found: Verified) -> Iterator[str]:
    """Yields the result for each table; below one that differs its rows, with keys and columns."""
    for table in found.tables:
        yield printable(f"{table.in_words()} {table.remedy or ''}".rstrip())
        for row in table.differences:
            yield f"    {printable(_difference(row))}"
        if table.different > len(table.differences):
            yield f"    and {table.different - len(table.differences):,} more"
    if found.share < 1:
        yield f"Compared were {found.share:.4g} of all keys; the next time it will be others."
    for name in found.repaired:
        yield f"{table_words(name)} is in Init: a run copies it again."


def _difference(row: Difference) -> str:
    key = ", ".join(f"{name} {value}" for name, value in row.key.items())
    columns = [f"{name} is {here} at the source and {there} here" for name, (here, there) in row.columns.items()]
    return f"{row.kind}: {key}" + (f": {'; '.join(columns)}" if columns else "")


def _streaming(status: Status) -> str:
    if status.paused is not None:
        return f"Paused since {_moment(status.paused)}: nothing is streamed, and the source retains its WAL."
    if status.lease is None:
        return "Nobody streams it now."
    return f"Streamed by {printable(in_words(status.lease.holder))}, epoch {status.lease.epoch}"


def _tables(tables: Sequence[TableStatus]) -> Iterator[str]:
    if not tables:
        yield "No tables yet: `pgetl run` or `pgetl copy` takes them up."
        return
    lands = any(table.merged is not None for table in tables)
    heads = (
        "TABLE",
        "DESTINATION",
        "GENERATION",
        "SINCE",
        "POSITION",
        "LAG",
        *(("MERGE LAG",) if lands else ()),
        "PHASE",
    )
    yield from columns([heads, *(_table(table, lands) for table in tables)])


def _table(table: TableStatus, lands: bool) -> tuple[str, ...]:
    return (
        table_words(table.table),
        _UNKNOWN if table.destination is None else table_words(table.destination),
        str(table.state.generation),
        _UNKNOWN if table.since is None else _moment(table.since),
        _UNKNOWN if table.position is None else str(table.position),
        _size(table.lag_bytes),
        *((_size(table.merge_lag_bytes),) if lands else ()),
        phase_words(table.state),
    )


def _slots(slots: Sequence[SlotStatus]) -> Iterator[str]:
    if not slots:
        yield "No replication slot."
        return
    heads = ("SLOT", "IN USE", "CONFIRMED", "WAL RETAINED", "WAL STATUS")
    yield from columns([heads, *(_slot(slot) for slot in slots)])


def _slot(slot: SlotStatus) -> tuple[str, ...]:
    return (
        slot.name,
        "yes" if slot.active else "no",
        _UNKNOWN if slot.confirmed is None else str(slot.confirmed),
        _size(slot.retained_bytes),
        (slot.wal_status or _UNKNOWN) + (f" ({slot.lost})" if slot.lost else ""),
    )


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the rows as lines of columns that are aligned to the left, with two blanks between them; the last is not
    padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _size(size: int | None) -> str:
    return _UNKNOWN if size is None else format_size(size)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
