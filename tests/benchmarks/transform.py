"""What transformed columns cost: a copy and a backlog of changes, with none, three and ten of them, and each alone.

    python -m tests.benchmarks.transform [--rows 300000] [--runs 3]

The table is copied into Postgres and into a lake by threads of this process, then the same backlog of inserts and
updates is applied. Printed are the rates, and their ratios to those without rules. Three columns are: hash, mask and
constant.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from airflow_provider_pgetl.engine.config.spec import (
    DestinationSpec,
    PipelineSpec,
    SourceSpec,
    StreamSpec,
    TableSpec,
    TransformationSpec,
    TransformSpec,
)
from airflow_provider_pgetl.engine.config.transformers import transformer
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName
from airflow_provider_pgetl.engine.transform.columns import ColumnTransform
from airflow_provider_pgetl.engine.transform.invented import stamp
from airflow_provider_pgetl.engine.transform.keyed import Key
from airflow_provider_pgetl.engine.transform.rules import ColumnRule
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server
from tests.without_spark import LocalPipeline

TABLE = """
create table people (
    id bigint primary key, email text, name text, street text, first text, phone text, token uuid, number int,
    born date, kind text, amount numeric(12, 2), seen timestamptz, note text
)
"""
ROW = """g, 'user' || g || '@example.org', 'name ' || g, 'street ' || g, 'first ' || g % 5000, '+49 30 ' || 1000000 + g,
    gen_random_uuid(), g, date '1950-01-01' + (g % 20000)::int, 'kind ' || g % 17, g / 7.0, now(), md5(g::text)"""
RULES: Mapping[int, Mapping[str, str]] = {
    0: {},
    3: {"email": "hash", "name": "mask", "street": "constant"},
    10: {
        "email": "email",
        "name": "mask",
        "street": "constant",
        "first": "first_name",
        "phone": "phone",
        "token": "uuid",
        "number": "integer",
        "born": "date",
        "kind": "choice",
        "note": "hash",
    },
}
OPTIONS: Mapping[str, Mapping[str, object]] = {
    "constant": {"value": "x"},
    "date": {"truncate": "year"},
    "choice": {"values": ["a", "b", "c"]},
}
KEY = "a key of the benchmark, long enough"
Seconds = dict[tuple[str, str, int], list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.transform")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    each_alone()
    settings = {"max_wal_size": "8GB", "shared_buffers": "256MB"}
    with Server.start(16, settings) as first, Server.start(18, settings) as second:
        seconds: Seconds = defaultdict(list)
        for run in range(given.runs):
            for kind in ("postgres", "delta"):
                for columns in RULES:
                    source = first.create_database(f"source_{kind}_{columns}_{run}")
                    destination = second.create_database(f"destination_{kind}_{columns}_{run}")
                    measure(seconds, kind, columns, source, destination, given.rows)
    report(seconds, given.rows)


def measure(seconds: Seconds, kind: str, columns: int, source: Database, destination: Database, rows: int) -> None:
    os.environ |= {"BENCH_SOURCE": source.uri, "BENCH_DESTINATION": destination.uri, "BENCH_KEY": KEY}
    source.execute(TABLE)
    source.execute(f"insert into people select {ROW} from generate_series(1, {rows}) g")
    source.execute("vacuum analyze people")
    with tempfile.TemporaryDirectory() as folder, closing(LocalPipeline(spec(kind, columns, Path(folder)))) as pipeline:
        seconds["copy", kind, columns].append(caught_up(pipeline))
        for begin in range(rows, 2 * rows, 10_000):
            source.execute(f"insert into people select {ROW} from generate_series({begin + 1}, {begin + 10_000}) g")
        source.execute(f"update people set note = note || '!', email = email || 'x' where id <= {rows // 2}")
        seconds["apply", kind, columns].append(caught_up(pipeline))


def spec(kind: str, columns: int, folder: Path) -> PipelineSpec:
    uri = "env:BENCH_DESTINATION" if kind == "postgres" else str(folder)
    return PipelineSpec(
        "bench",
        (TableSpec("public.people"),),
        SourceSpec("env:BENCH_SOURCE"),
        DestinationSpec(kind, uri),
        stream=StreamSpec(min_interval=1.0),
        transform=tuple(TransformSpec(one, use, options=OPTIONS.get(use, {})) for one, use in RULES[columns].items()),
        transformation=TransformationSpec(key="env:BENCH_KEY"),
    )


def caught_up(pipeline: LocalPipeline) -> float:
    begun = time.perf_counter()
    outcome = pipeline.run(until_caught_up=True, stop=threading.Event())
    assert not outcome.errored, outcome
    return time.perf_counter() - begun


def report(seconds: Seconds, rows: int) -> None:
    changes = {"copy": rows, "apply": rows + rows // 2}
    for (what, kind, columns), runs in sorted(seconds.items()):
        median, none = statistics.median(runs), statistics.median(seconds[what, kind, 0])
        every = ", ".join(f"{one:.1f}" for one in runs)
        rate = changes[what] / median / 1000
        print(f"{what} {kind} {columns:2} columns: {rate:6.0f} k rows/s, {none / median:4.2f} x none   ({every} s)")


def each_alone() -> None:
    """Prints microseconds for each value, of which none occurs twice."""
    number = 200_000
    plain = [b"user%d@example.org" % at for at in range(number)]
    others: Mapping[str, tuple[PgType, Sequence[bytes]]] = {
        "integer": (PgType(20, "bigint"), [b"%d" % at for at in range(number)]),
        "uuid": (PgType(2950, "uuid"), [b"00000000-0000-0000-0000-%012d" % at for at in range(number)]),
        "date": (PgType(1082, "date"), [b"%04d-%02d-01" % (1000 + at % 9000, at % 12 + 1) for at in range(number)]),
    }
    for use in sorted({use for rules in RULES.values() for use in rules.values()}):
        kind, values = others.get(use, (PgType(25, "text"), plain))
        made = transformer(use, OPTIONS.get(use, {}))
        rule = ColumnRule(
            TableName("public", "people"), 0, Column("c", kind, kind.name), made, None, False, stamp(made)
        )
        column, texts = ColumnTransform(rule, Key(KEY)), pa.array(values, pa.large_binary())
        begun = time.perf_counter()
        column.of(texts, lambda name: pa.array([name]))
        print(f"{use:12} {(time.perf_counter() - begun) / number * 1e6:5.2f} us a value", flush=True)


if __name__ == "__main__":
    main()
