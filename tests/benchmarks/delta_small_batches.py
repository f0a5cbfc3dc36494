"""Does a Delta table degrade that is written to in small batches for a long time?

    python -m tests.benchmarks.delta_small_batches [--rows 1000000] [--batches 1000]

Each batch changes ten rows of the newest ten thousand, and brings five. Told are seconds for reading the whole table,
by delta-rs (its log, then all columns) and by DuckDB (over the snapshot's files), before and after, with housekeeping
and without; beside it files and seconds for a batch. Measured: with it 11 files, read in 1.0 to 1.5 times as long as
before; without it 1001 files, and 2.4 (DuckDB) to 12 times (delta-rs) as long.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.testing.builders import Line, Replica

_RUNS = 5


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.delta_small_batches")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=1000)
    given = parser.parse_args()
    for housekeeping in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            _measure(Path(folder), given.rows, given.batches, housekeeping=housekeeping)


def _measure(lake: Path, rows: int, batches: int, *, housekeeping: bool) -> None:
    replica = Replica(DeltaDestination(str(lake), "bench", {"housekeeping": housekeeping}), pipeline="bench")
    replica.create(*map(_row, range(rows)))
    place = lake / replica.schema.table.schema / replica.schema.table.name
    before = _reading(place)
    begun = time.perf_counter()
    _write(replica, rows, batches)
    each = (time.perf_counter() - begun) / batches
    after = _reading(place)
    print(f"housekeeping {'on' if housekeeping else 'off'}: {batches} batches of {each * 1000:.0f} ms,"
          f" {len(DeltaTable(place).file_uris())} files")  # fmt: skip
    for name in before:
        print(f"    read by {name:8} {before[name]:6.3f} s before, {after[name]:6.3f} s after,"
              f" {after[name] / before[name]:.2f} x", flush=True)  # fmt: skip


def _write(replica: Replica, rows: int, batches: int) -> None:
    dice = random.Random(1)
    for number in range(batches):
        wire = replica.wire()
        for _ in range(10):
            wire.update(_row(dice.randrange(max(0, rows - 10_000), rows)))
        for new in range(5):
            wire.insert(_row(rows + 5 * number + new))
        replica.apply(wire.take())


def _row(number: int) -> Line:
    return (b"%d" % number, b"name %d" % number, b"note %d" % (number % 100))


def _reading(place: Path) -> dict[str, float]:
    return {"delta-rs": _fastest(lambda: _by_delta_rs(place)), "DuckDB": _fastest(lambda: _by_duckdb(place))}


def _fastest(read: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_RUNS):
        begun = time.perf_counter()
        read()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def _by_delta_rs(place: Path) -> int:
    return int(pa.table(DeltaTable(place).scan()).num_rows)


def _by_duckdb(place: Path) -> object:
    with duckdb.connect() as connection:
        files = DeltaTable(place).file_uris()
        return connection.execute("select count(*), sum(id), max(name), max(note) from read_parquet($1)", [files])


if __name__ == "__main__":
    main()
