"""What merging takes of memory is bounded in bytes, whatever the rows, the files and who has written them.

Each case runs in a process of its own, which tells how much more it has held than before it began.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_pgetl.engine.changes.batch import EventBatch
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination, apply
from airflow_provider_pgetl.engine.destinations.delta.files.data_files import Layout
from airflow_provider_pgetl.engine.destinations.delta.log.snapshot import LiveFile
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.destinations.delta.merge.file_merge import Changes
from airflow_provider_pgetl.engine.destinations.delta.merge.working_set import WorkingSet
from airflow_provider_pgetl.engine.destinations.protocol import Misses
from airflow_provider_pgetl.engine.runtime.processes import WorkingMemory
from airflow_provider_pgetl.testing.builders import Replica
from tests.engine.destinations.delta.reading import rows_of

_ROOT = Path(__file__).parents[4]
_MOST = 200 << 20
COLUMNS = pa.schema([("id", pa.int64()), ("doc", pa.string())])


def rows(first: int, count: int, size: int) -> pa.RecordBatch:
    """Documents of letters that hardly compress."""
    letters = np.random.default_rng(first).integers(97, 123, count * size, np.uint8)
    ends = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * size)
    docs = pa.Array.from_buffers(pa.string(), count, [None, ends, pa.py_buffer(letters)])
    return pa.record_batch([pa.array(np.arange(first, first + count)), docs], schema=COLUMNS)


def write(path: Path, count: int, size: int, *, rows_per_group: int) -> None:
    """As others do, with row groups as they like them."""
    each = max((4 << 20) // size, 1)
    with pq.ParquetWriter(path, COLUMNS, compression="zstd", use_dictionary=False) as writer:
        for first in range(0, count, each):
            writer.write_batch(rows(first, min(each, count - first), size), row_group_size=rows_per_group)


def changed(ids: np.ndarray, *, moved_by: int = 0, size: int = 3) -> Changes:
    """Updates of these rows; or they move to other keys, and the source does not send their documents again."""
    docs = pa.nulls(len(ids), pa.string()) if moved_by else pa.array(["x" * size] * len(ids))
    fresh = pa.table([pa.array(ids + moved_by), docs], schema=COLUMNS)
    absent = {"doc": np.ones(len(ids), np.bool_)} if moved_by else {}
    none = fresh.slice(0, 0)
    bases = pa.table({"id": pa.array(ids)})
    return Changes(none.select(["id"]), bases, np.full(len(ids), bool(moved_by)), fresh, absent, none)


def merged(folder: Path, changes: Changes) -> WorkingSet:
    live = [LiveFile(one.name, one.stat().st_size) for one in sorted(folder.iterdir())]
    files = WorkingSet(TableFolder(str(folder)), Layout(COLUMNS, ("id",)), live)
    assert files.merge(changes) == Misses()
    return files


def few_updates(folder: Path) -> None:
    merged(folder, changed(np.arange(0, 100_000, 1000)))


def many_updates(folder: Path) -> None:
    """The new documents are far larger than the old ones."""
    merged(folder, changed(np.arange(0, 100_000, 10), size=6000))


def moves(folder: Path) -> None:
    merged(folder, changed(np.arange(0, 3000), moved_by=1_000_000))


def compaction(folder: Path) -> None:
    merged(folder, changed(np.arange(1))).compact()


def sorted_compaction(folder: Path) -> None:
    """All files have the same keys, in one row group or in many."""
    live = [LiveFile(one.name, one.stat().st_size) for one in sorted(folder.iterdir())]
    files = WorkingSet(TableFolder(str(folder)), Layout(COLUMNS, ("id",), order=("id",)), live)
    files.compact()


@pytest.mark.parametrize(
    ("case", "files", "count", "size", "rows_per_group"),
    [
        pytest.param(few_updates, 1, 600_000, 300, 1 << 30, id="one row group of 180 MB"),
        pytest.param(few_updates, 6, 100_000, 300, 1 << 30, id="several files"),
        pytest.param(many_updates, 1, 200_000, 300, 1 << 30, id="new values that are larger"),
        pytest.param(compaction, 1, 600_000, 300, 1 << 30, id="compaction"),
        pytest.param(sorted_compaction, 6, 100_000, 300, 1 << 30, id="compaction in key order"),
        pytest.param(sorted_compaction, 3, 3000, 10_000, 100, id="compaction of long rows"),
        pytest.param(moves, 1, 3000, 100_000, 100, id="moves with documents that are not sent again"),
        pytest.param(few_updates, 1, 4_000_000, 300, 1 << 30, id="4 M rows in one group", marks=pytest.mark.slow),
        pytest.param(few_updates, 1, 8_000_000, 300, 1 << 30, id="8 M rows in one group", marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(600)
def test_merging_is_bounded(
    tmp_path: Path, case: Callable[[Path], None], files: int, count: int, size: int, rows_per_group: int
) -> None:
    for number in range(files):
        _in_a_process("write_", str(tmp_path / f"{number}.parquet"), str(count), str(size), str(rows_per_group))
        if files > 1 and case is few_updates:
            _renumber(tmp_path / f"{number}.parquet")
    more = int(_in_a_process(case.__name__, str(tmp_path)))
    assert more < _MOST, f"{more >> 20} MB"


def _renumber(path: Path) -> None:
    """Every file but the first has keys that nobody changes: it is read, and stays."""
    if path.stem != "0":
        table = pq.read_table(path)
        keys = pa.array(table.column("id").to_numpy() + 10_000_000 * int(path.stem))
        pq.write_table(table.set_column(0, COLUMNS.field("id"), keys), path, row_group_size=1 << 30)


def write_(path: str, count: str, size: str, rows_per_group: str) -> None:
    write(Path(path), int(count), int(size), rows_per_group=int(rows_per_group))


def _in_a_process(what: str, *arguments: str) -> str:
    """How many bytes more it held at most than when it began."""
    small = "from airflow_provider_pgetl.engine.runtime.processes import return_memory; return_memory()"
    called = f"from tests.engine.destinations.delta.test_memory_of_merges import told; told({what!r}, *{arguments!r})"
    command = [sys.executable, "-c", f"{small}; {called}"]
    return subprocess.run(command, check=True, cwd=_ROOT, stdout=subprocess.PIPE, text=True).stdout


def told(what: str, *arguments: str) -> None:
    function = globals()[what]
    if what == "write_":
        function(*arguments)
        return
    (before,) = _resident()
    function(Path(*arguments))
    (peak,) = _resident()
    print(peak - before)


def _resident() -> Iterator[int]:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            yield int(line.split()[1]) << 10


def test_changes_of_many_tables_that_wait_to_be_merged_are_few_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []

    class Told(WorkingMemory):
        def hold(self, size: int) -> None:
            super().hold(size)
            held.append(self.held)

    monkeypatch.setattr(apply, "WORKING", Told())
    monkeypatch.setattr(apply, "GATHERED_BYTES", 20_000)
    monkeypatch.setattr(apply, "NET_BYTES", 200_000)
    destination = DeltaDestination(str(tmp_path), "shop")
    tables = [Replica(destination, pipeline="shop").create() for _ in range(10)]
    steps = [
        one.wire().insert((str(number).encode(), b"x" * 10_000, None)).take() for number in range(20) for one in tables
    ]
    moves = {one.schema.table: one.batch().moves[one.schema.table] for one in tables}
    destination.write_events(EventBatch("shop", 1, moves, steps))
    assert 100_000 < max(held) < 300_000
    assert held[-1] == 0
    for one in tables:
        assert len(rows_of(tmp_path / one.schema.table.schema / one.schema.table.name)) == 20
