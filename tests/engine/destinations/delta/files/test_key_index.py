"""Indexes of keys: they find what reading the keys finds, within their room, whatever happens to their files."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta.files import key_index
from airflow_provider_pgetl.engine.destinations.delta.files.key_index import KeyIndexes
from airflow_provider_pgetl.engine.destinations.delta.files.keys import Lookup
from airflow_provider_pgetl.testing.builders import Line, Replica
from tests.engine.destinations.delta.reading import rows_of

NAN, FAR = float("nan"), 2_932_896  # days of the year 9999
POOLS: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int16(): [0, 1, -1, 2**15 - 1, -(2**15)],
    pa.int32(): [0, 5, -7, 2**31 - 1],
    pa.int64(): [0, 7, -1, 2**63 - 1, -(2**63)],
    pa.float32(): [0.0, -0.0, NAN, 1.5, float("inf"), float("-inf"), 1e-40],
    pa.float64(): [0.0, -0.0, NAN, 1.5, float("inf"), 5e-324],
    pa.string(): ["", "a", "ab", "abcdefgh", "abcdefghi", "abcdefgh\0", "\0", "é" * 9, "a\0", "x" * 100],
    pa.binary(): [b"", b"\0", b"\0\0", b"\xff" * 8, b"\xff" * 9, b"abcdefgh"],
    pa.date32(): [0, -1, FAR, FAR + 5, 10 * FAR, -FAR],
    pa.timestamp("us"): [0, -1, 2**60, -(2**60), 2**62],
    pa.timestamp("us", "UTC"): [0, 1, 2**61],
    pa.decimal128(5, 2): [Decimal("1.10"), Decimal("-1.10"), Decimal(0)],
    pa.decimal128(38, 10): [Decimal(text) for text in ("0", "1", "-1", "9" * 28, "-" + "9" * 28, str(2**64))],
    pa.list_(pa.field("element", pa.int64())): [[], [1], [1, 2], [None], [12]],
    pa.list_(pa.field("element", pa.string())): [[], ["a"], ["a', 'b"], ["a", "b"], [""]],
}
Values = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(key_index, "LEAST_ROWS", 0)
    yield folder
    monkeypatch.undo()
    tempfile.tempdir = None


def array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pa.array(values, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)
    return pa.array(values, kind)


def chunked(dice: random.Random, values: list[Any], kind: pa.DataType) -> pa.ChunkedArray:
    """In pieces, some of them empty, each a slice of more."""
    chunks, at = [], 0
    while at < len(values):
        part = values[at : at + dice.randint(0, 7)]
        at += len(part)
        before = dice.randint(0, 2)
        around = [*[None] * before, *part, *POOLS[kind][: dice.randint(0, 2)]]
        chunks.append(array(around, kind).slice(before, len(part)))
    return pa.chunked_array(chunks, kind)


def table(dice: random.Random, rows: Values, kinds: list[pa.DataType]) -> pa.Table:
    columns = [chunked(dice, [row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
    return pa.Table.from_arrays(columns, names=[f"c{at}" for at in range(len(kinds))])


def some(dice: random.Random, kinds: list[pa.DataType], count: int) -> Values:
    return [tuple(dice.choice([*POOLS[kind], None]) for kind in kinds) for _ in range(count)]


def by_reading(keys: pa.Table, rows: pa.Table) -> list[tuple[int, int]]:
    lookup = Lookup(keys)
    numbers = {code: at for at, code in enumerate(lookup.codes.to_pylist())}
    return [(at, numbers[code]) for at, code in enumerate(lookup.find(rows).to_pylist()) if code is not None]


def by_index(keys: pa.Table, rows: pa.Table, edge: int) -> list[tuple[int, int]]:
    indexes = KeyIndexes(1 << 30)
    batches = [(0, rows.slice(0, edge)), (edge, rows.slice(edge))]
    with indexes.made("file", keys.column_names, rows.num_rows, batches) as index:
        assert index is not None
        found, hits = index.find(indexes.hashes(keys))
    indexes.close()
    return list(zip(found.tolist(), hits.tolist(), strict=True))


@pytest.mark.parametrize("segment", [5, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_an_index_finds_what_reading_the_keys_finds(seed: int, segment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "_SEGMENT_ROWS", segment)
    dice = random.Random(seed)
    for kinds in [[kind] for kind in POOLS] + [dice.choices(list(POOLS), k=dice.randint(2, 3)) for _ in range(60)]:
        rows = table(dice, some(dice, kinds, dice.randint(1, 40)), kinds)
        wanted = {repr(key): key for key in some(dice, kinds, dice.randint(1, 10))}
        keys = table(dice, list(wanted.values()), kinds)
        assert sorted(by_index(keys, rows, dice.randint(0, rows.num_rows))) == by_reading(keys, rows), kinds


def test_rows_come_rising_and_as_often_as_they_are_there() -> None:
    dice = random.Random(3)
    values = [dice.randrange(300) for _ in range(5000)]
    keys, rows = pa.table({"id": range(0, 300, 7)}), pa.table({"id": values})
    found = by_index(keys, rows, 2500)
    assert [row for row, _ in found] == [at for at, value in enumerate(values) if value % 7 == 0]
    assert all(values[row] == 7 * hit for row, hit in found)


# -- room


def ids(count: int = 1000) -> pa.Table:
    return pa.table({"id": pa.array(range(count), pa.int64())})


def used(place: Path) -> int:
    return sum(one.stat().st_size for one in place.rglob("*") if one.is_file())


def make(indexes: KeyIndexes, path: str, rows: pa.Table | None = None) -> bool:
    rows = ids() if rows is None else rows
    with indexes.made(path, ["id"], rows.num_rows, [(0, rows)]) as index:
        return index is not None


def knows(indexes: KeyIndexes, path: str) -> bool:
    with indexes.known(path, ["id"]) as index:
        return index is not None


def test_those_that_were_used_longest_ago_make_room(place: Path) -> None:
    indexes = KeyIndexes(50_000)
    for number in range(20):
        assert make(indexes, f"t/{number}")
        assert knows(indexes, "t/0")
        assert used(place) == indexes.size <= 50_000
    assert [number for number in range(20) if knows(indexes, f"t/{number}")] == [0, 18, 19]
    assert not make(indexes, "t/large", ids(3000))
    assert knows(indexes, "t/0")


def test_none_goes_while_it_is_in_use(place: Path) -> None:
    """And where no other can go, none is made."""
    indexes = KeyIndexes(30_000)
    with indexes.made("t/a", ["id"], 1000, [(0, ids())]) as index:
        assert index is not None
        assert not make(indexes, "t/b")
        assert knows(indexes, "t/a")
        indexes.retain("t", [])
        assert not knows(indexes, "t/a")
        assert not make(indexes, "t/b")
        assert len(index.find(indexes.hashes(ids()))[0]) == 1000
    assert used(place) == 0
    assert make(indexes, "t/b")


def test_threads_share_indexes(place: Path) -> None:
    """Tables are merged into side by side: what one has found, another's must not take away."""
    indexes, failures = KeyIndexes(60_000), []

    def work(number: int) -> None:
        try:
            for path in [f"t{number}/{turn % 3}" for turn in range(60)]:
                with indexes.known(path, ["id"]) as index:
                    assert index is None or len(index.find(indexes.hashes(ids()))[0]) == 1000
                if index is None:
                    with indexes.made(path, ["id"], 1000, [(0, ids())]) as index:
                        assert index is None or len(index.find(indexes.hashes(ids()))[0]) == 1000
                indexes.retain(f"t{number}", [path])
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert used(place) == indexes.size <= 60_000
    indexes.close()
    assert list(place.iterdir()) == []


def test_files_of_one_name_in_two_tables_are_two() -> None:
    indexes = KeyIndexes(1 << 20)
    assert make(indexes, "orders/part", ids(10))
    assert make(indexes, "orders2/part", ids(20))
    for path, rows in (("orders/part", 10), ("orders2/part", 20)):
        with indexes.known(path, ["id"]) as index:
            assert index is not None
            assert len(index.find(indexes.hashes(ids()))[0]) == rows
    indexes.retain("orders", [])
    assert (knows(indexes, "orders/part"), knows(indexes, "orders2/part")) == (False, True)
    with indexes.known("orders2/part", ["other"]) as index:
        assert index is None


def test_a_full_disk_costs_no_batch(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    indexes = KeyIndexes(1 << 20)
    assert make(indexes, "t/a")
    (folder,) = place.iterdir()
    hidden = folder.with_name("hidden")
    folder.rename(hidden)
    folder.write_text("in the way")
    assert not make(indexes, "t/b")
    folder.unlink()
    hidden.rename(folder)
    assert not make(indexes, "t/b")
    assert knows(indexes, "t/a")
    monkeypatch.setattr(key_index, "_PAUSE_SECONDS", 0.0)
    indexes._paused_until = 0.0
    assert make(indexes, "t/b")
    assert used(place) == indexes.size


def test_what_was_begun_in_vain_is_removed(place: Path) -> None:
    def batches() -> Iterator[tuple[int, pa.Table]]:
        yield 0, ids(10)
        raise ValueError("cannot be read")

    indexes = KeyIndexes(1 << 20)
    with pytest.raises(ValueError, match="cannot be read"), indexes.made("t/a", ["id"], 20, batches()):
        pass
    assert used(place) == 0
    assert list(next(place.iterdir()).iterdir()) == []
    assert indexes._promised == 0


def test_an_index_that_somebody_has_removed_is_made_anew(place: Path) -> None:
    indexes = KeyIndexes(1 << 20)
    assert make(indexes, "t/a")
    shutil.rmtree(next(place.iterdir()))
    assert not knows(indexes, "t/a")
    assert make(indexes, "t/a")
    assert knows(indexes, "t/a")


_KILLED = """
from airflow_provider_pgetl.engine.destinations.delta.files import key_index
import pyarrow as pa
key_index.LEAST_ROWS = 0
indexes = key_index.KeyIndexes(1 << 20)
with indexes.made("t/a", ["id"], 10, [(0, pa.table({"id": range(10)}))]):
    print("made", flush=True)
    input()
"""


def test_what_a_killed_worker_leaves_goes_with_the_next(place: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", _KILLED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(place)},
    )
    assert worker.stdout is not None
    worker.stdout.readline()
    (left,) = place.iterdir()
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert left.exists()
    indexes = KeyIndexes(1 << 20)
    assert make(indexes, "t/a")
    assert not left.exists()


# -- in a table


def line(number: int, note: bytes | None = None) -> Line:
    return b"%d" % number, b"n%d" % number, note


@pytest.mark.parametrize("limit", [0, 3000, 1 << 20])
def test_a_table_is_the_same_with_any_room(tmp_path: Path, place: Path, limit: int) -> None:
    options = {"updates": "merge_on_read", "key_index_bytes": limit, "housekeeping": False}
    destination = DeltaDestination(str(tmp_path / "lake"), "shop", options)
    replica = Replica(destination, pipeline="shop").create(*map(line, range(100)))
    model, dice = dict.fromkeys(range(100)), random.Random(5)
    for turn in range(8):
        wire = replica.wire()
        for number in dice.sample(sorted(model), 5):
            wire.update(line(number, b"%d" % turn))
            model[number] = f"{turn}"
        for number in dice.sample(sorted(model), 3):
            wire.delete(line(number))
            del model[number]
        replica.apply(wire.take())
        assert used(place) <= limit
    path = tmp_path / "lake" / replica.schema.table.schema / replica.schema.table.name
    assert sorted(rows_of(path)) == sorted((number, f"n{number}", note) for number, note in model.items())
    destination.shutdown()
    assert list(place.iterdir()) == []


def test_hashes_tell_nothing_of_another_process() -> None:
    first, second = (KeyIndexes(0).hashes(ids()).first for _ in range(2))
    assert not np.any(first == second)
