"""What a commit of few changes costs in a large Delta table: files rewritten, against deletion vectors.

    python -m tests.benchmarks.delta_updates [--sizes 1,4,16,64] [--rewrite-up-to 16] [--commits 20] [--many 1000]

* One commit of 1,000 updates on spread keys, in tables of several million rows, in both ways of updating, with a bigint
  and with a uuid as the key. The first commit of a worker, which makes the key indexes, is told apart from those after
  it, of which the median counts.
* Seconds for reading a table of 1 M rows (DuckDB, all columns) after `--many` such commits with compaction, beside
  those for the table as it was copied.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.testing.builders import INT8, TEXT, Replica
from tests.third_party.readers import duckdb_with_delta

CHANGES = 1000
_ROWS_AT_ONCE = 200_000
_RANGE_ROWS = 2_000_000
_SPREAD = 0x9E3779B97F4A7C15


def main() -> None:
    given = _arguments()
    if given.child:
        print(json.dumps(_commits(Path(given.child), given.key, int(given.size), given.updates, given.commits)))
        return
    figures: dict[tuple[str, str, int], dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for key in ("bigint", "uuid"):
            for millions in map(int, given.sizes.split(",")):
                lake = copied_lake(Path(folder) / f"{key}-{millions}", key, millions * 1_000_000)
                for updates in ("rewrite", "merge_on_read"):
                    if updates == "merge_on_read" or millions <= given.rewrite_up_to:
                        commits = given.commits if updates == "merge_on_read" else min(given.commits, 3)
                        figures[key, updates, millions] = _told(lake, key, millions, updates, commits)
                shutil.rmtree(lake)
        _ratios(figures)
        if given.many:
            _reading(Path(folder), given.many)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.delta_updates")
    parser.add_argument("--sizes", default="1,4,16", help="millions of rows")
    parser.add_argument("--rewrite-up-to", type=int, default=16, help="millions of rows")
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--many", type=int, default=0)
    for name in ("--child", "--key", "--size", "--updates"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    return parser.parse_args()


def schema_of(key: str) -> TableSchema:
    columns = (
        Column("id", INT8 if key == "bigint" else PgType(2950, "uuid"), key, not_null=True),
        Column("kind", INT8, "bigint"),
        Column("name", TEXT, "text"),
    )
    return TableSchema(TableName("public", "items"), 16_999, columns, ("id",), "default")


def key_of(key: str, number: int) -> str:
    return str(number) if key == "bigint" else str(uuid.UUID(int=number * _SPREAD**2 % (1 << 128)))


def copied_lake(lake: Path, key: str, rows: int) -> Path:
    destination = DeltaDestination(str(lake), "bench")
    target = Target("bench", schema_of(key), 1)
    destination.begin_copy(target, 1)
    for number, first in enumerate(range(0, rows, _RANGE_ROWS)):
        batches = _batches(target.schema, key, first, min(first + _RANGE_ROWS, rows))
        destination.write_range_rows(target, 1, number, Boundary(10), batches)
    destination.finish_copy(target, 1, Boundary(10))
    return lake


def _batches(schema: TableSchema, key: str, first: int, end: int) -> Iterator[pa.RecordBatch]:
    for at in range(first, end, _ROWS_AT_ONCE):
        numbers = np.arange(at, min(at + _ROWS_AT_ONCE, end))
        ids = pa.array(numbers) if key == "bigint" else pa.array([key_of(key, one) for one in numbers.tolist()])
        texts = [ids, pa.array(numbers % 97), pa.array([f"item {one}" for one in numbers.tolist()])]
        arrays = [one.cast(pa.string()).cast(pa.binary()) for one in texts]
        yield pa.RecordBatch.from_arrays(arrays, names=list(schema.names))


def _told(lake: Path, key: str, millions: int, updates: str, commits: int) -> dict[str, Any]:
    """Of a process of its own, on a copy of the table."""
    own = lake.with_name("own")
    shutil.copytree(lake, own)
    worker = "from airflow_provider_pgetl.engine.runtime.processes import return_memory; return_memory();"
    command = [sys.executable, "-c", f"{worker} from tests.benchmarks.delta_updates import main; main()"]
    command += ["--child", str(own), "--key", key, "--size", str(millions), "--updates", updates]
    command += ["--commits", str(commits)]
    try:
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    finally:
        shutil.rmtree(own)
    found: dict[str, Any] = json.loads(said)
    print(
        f"{key:6} {millions:3} M rows {updates:13} first {found['first']:6.2f} s, then {found['median']:6.3f} s"
        f"  peak {found['peak'] >> 10} MB",
        flush=True,
    )
    return found


def _commits(lake: Path, key: str, millions: int, updates: str, commits: int) -> dict[str, Any]:
    options = {"updates": updates, "key_index_bytes": "4GiB"}
    replica = Replica(DeltaDestination(str(lake), "bench", options), schema_of(key), "bench")
    replica.destination.claim("bench", 1)
    dice = random.Random(1)
    taken = [_commit(replica, key, millions * 1_000_000, dice) for _ in range(commits)]
    replica.destination.shutdown()
    peak = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return {"first": taken[0], "median": statistics.median(taken[1:] or taken), "peak": peak}


def _commit(replica: Replica, key: str, rows: int, dice: random.Random) -> float:
    wire = replica.wire()
    for number in dice.sample(range(rows), CHANGES):
        wire.update((key_of(key, number).encode(), b"1", b"changed"))
    steps = wire.take()
    begun = time.perf_counter()
    replica.apply(steps)
    return time.perf_counter() - begun


def _ratios(figures: dict[tuple[str, str, int], dict[str, Any]]) -> None:
    for (key, updates, millions), found in figures.items():
        other = figures.get((key, "rewrite", millions))
        if updates == "merge_on_read" and other is not None:
            ratio = other["median"] / found["median"]
            print(f"{key} {millions} M rows: deletion vectors cost {ratio:.1f} x less than rewriting")
    sizes = sorted(millions for key, updates, millions in figures if (key, updates) == ("bigint", "merge_on_read"))
    medians = {
        (key, size): figures[key, "merge_on_read", size]["median"] for key in ("bigint", "uuid") for size in sizes
    }
    print(f"from {sizes[0]} to {sizes[-1]} M rows: {medians['bigint', sizes[-1]] / medians['bigint', sizes[0]]:.2f} x")
    for size in sizes:
        print(f"{size} M rows: uuid keys cost {medians['uuid', size] / medians['bigint', size]:.2f} x of bigint keys")


def _reading(folder: Path, commits: int) -> None:
    lake = copied_lake(folder / "read", "bigint", 1_000_000)
    before = _seconds_to_read(lake)
    _commits(lake, "bigint", 1, "merge_on_read", commits)
    after = _seconds_to_read(lake)
    print(f"read after {commits} commits: {after:.3f} s, as copied {before:.3f} s: {after / before:.2f} x", flush=True)


def _seconds_to_read(lake: Path) -> float:
    with duckdb_with_delta().cursor() as connection:
        taken = []
        for _ in range(7):
            begun = time.perf_counter()
            connection.execute("select max(hash(columns(*))) from delta_scan($1)", [str(lake / "public" / "items")])
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
