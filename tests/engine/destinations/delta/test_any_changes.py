"""Whatever a source does to a table, the lake's table comes out equal: with keys of all kinds and without, merged at
once or piece by piece, and, in a log, by replaying its entries."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.changes.batch import Step
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination, apply
from airflow_provider_pgetl.engine.destinations.delta.files import data_files, key_index
from airflow_provider_pgetl.engine.model.tables import TableSchema
from airflow_provider_pgetl.testing.builders import Replica
from tests.comparing import hashable
from tests.engine.destinations.delta.reading import rows_of
from tests.engine.destinations.sources import Source, schema_of

IDENTITIES = {
    "key": (("k",), "default"),
    "key of two": (("K two", "k"), "index"),
    "key, whole rows sent": (("k", "K two"), "full"),
    "no key": ((), "full"),
}
by_identity = pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES.keys())
# A failing seed says all: shrinking it would only cost minutes.
SETTINGS = settings(max_examples=12, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
numbers = iter(range(1_000_000))


@pytest.fixture(
    params=[(1, 1), (1, 1 << 26), (1 << 26, 1 << 26)], ids=["merged by pieces", "folded by pieces", "at once"]
)
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much is folded, and merged, at a time; and small row groups, so that files have several."""
    monkeypatch.setattr(apply, "GATHERED_BYTES", request.param[0])
    monkeypatch.setattr(apply, "NET_BYTES", request.param[1])
    monkeypatch.setattr(data_files, "GROUP_ROWS", 7)


@pytest.fixture(params=["rewrite", "merge_on_read"])
def updates(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way of updating; with an index of several parts even for small files."""
    monkeypatch.setattr(key_index, "LEAST_ROWS", 5)
    monkeypatch.setattr(key_index, "_SEGMENT_ROWS", 8)
    return str(request.param)


@pytest.mark.usefixtures("pieces")
@by_identity
def test_any_sequence_of_changes(tmp_path: Path, identity: tuple[tuple[str, ...], Any], updates: str) -> None:
    destination = DeltaDestination(str(tmp_path), "shop", {"target_file_bytes": "1MiB", "updates": updates})

    @given(st.integers(0, 1 << 32), st.sampled_from([(4, 0.1), (200, 0.01)]), st.integers(1, 80))
    @SETTINGS
    def run(seed: int, keys_and_cuts: tuple[int, float], changes: int) -> None:
        keys, cuts = keys_and_cuts
        schema = schema_of(*identity, name=f"t{next(numbers)}")
        source = Source(schema, random.Random(seed), b"t", keys)
        replica = Replica(destination, schema, pipeline="shop").create()
        for _ in range(3):
            replica.apply(*source.live(changes, cuts=cuts))
            assert Counter(rows_of(tmp_path / "public" / schema.table.name)) == source.held
        assert schema.table not in destination.misses()

    run()


@pytest.mark.usefixtures("pieces")
@by_identity
def test_a_log_replays_to_the_table(tmp_path: Path, identity: tuple[tuple[str, ...], Any]) -> None:
    destination = DeltaDestination(str(tmp_path), "shop", {"mode": "history"})

    @given(st.integers(0, 1 << 32), st.integers(1, 60))
    @SETTINGS
    def run(seed: int, changes: int) -> None:
        schema = schema_of(*identity, name=f"h{next(numbers)}")
        source = Source(schema, random.Random(seed))
        replica = Replica(destination, schema, pipeline="shop").create()
        steps = numbered(source.live(changes) + source.live(changes))
        half = len(steps) // 2
        replica.apply(*steps[:half])
        replica.apply(*steps[half:])
        table = DeltaTable(str(tmp_path / "public" / schema.table.name))
        assert replayed(schema, pa.table(table.scan()).to_pylist()) == source.held

    run()


def numbered(steps: list[Step]) -> list[Step]:
    """Each step a transaction of its own, so that entries have an order."""
    ordered: list[Any] = []
    for at, step in enumerate(steps):
        if hasattr(step, "commit_lsns"):
            ordered.append(replace(step, commit_lsns=step.commit_lsns * 0 + 100 + at))
        else:
            ordered.append(replace(step, commit_lsn=100 + at))
    return ordered


def replayed(schema: TableSchema, entries: Iterable[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """The table that a log amounts to. Of two entries at one position the delete comes first."""
    rows: dict[Any, dict[str, Any]] = {}
    bag: list[dict[str, Any]] = []
    before: dict[str, Any] = {}
    order = sorted(entries, key=lambda e: (e["_pgetl_commit_lsn"], e["_pgetl_ordinal"], e["_pgetl_kind"] != "delete"))
    for entry in order:
        row = {name: entry[name] for name in schema.names}
        key = tuple(row[name] for name in schema.key) if schema.key else None
        match entry["_pgetl_kind"]:
            case "truncate":
                rows, bag = {}, []
            case "delete" if key is None:
                bag.remove(row)
            case "delete":
                before = rows.pop(key)
            case _ if key is None:
                bag.append(row)
            case _:
                old = rows.get(key, before)
                row |= {name: old[name] for name in entry["_pgetl_unchanged"] or ()}
                rows[key] = row
    return Counter(hashable(tuple(row.values())) for row in [*rows.values(), *bag])


def test_only_files_that_a_key_can_be_in_are_rewritten(tmp_path: Path) -> None:
    destination = DeltaDestination(str(tmp_path), "shop")
    schema = schema_of(("k",))
    replica = Replica(destination, schema, pipeline="shop")
    destination.begin_copy(replica.target, 1)
    for number in range(10):
        replica.stage(1, number, [(b"%d" % k, b"x", None, None, None) for k in range(number * 10, number * 10 + 10)])
    destination.finish_copy(replica.target, 1, replica.position)
    destination.claim("shop", 1)
    place = tmp_path / "public" / "t"
    before = set(DeltaTable(str(place)).file_uris())
    replica.apply(replica.wire().update((b"15", b"y", None, None, None)).delete((b"37", None, None, None, None)).take())
    after = set(DeltaTable(str(place)).file_uris())
    assert (len(before - after), len(after - before)) == (2, 2)
    assert len(rows_of(place)) == 99


def test_a_batch_that_fails_leaves_no_file_behind(tmp_path: Path) -> None:
    destination = DeltaDestination(str(tmp_path), "shop")
    replica = Replica(destination, schema_of(("k",)), pipeline="shop").create((b"1", b"x", None, None, None))
    before = files_of(tmp_path)

    def steps() -> Any:
        yield replica.wire().update((b"1", b"y", None, None, None)).insert((b"2", b"y", None, None, None)).take()
        yield replica.wire().insert((b"not a number", b"y", None, None, None)).take()

    class Steps:
        def __iter__(self) -> Any:
            return steps()

    for size in (1, 1 << 26):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(apply, "GATHERED_BYTES", size)
            with pytest.raises(Exception, match="not a number") as caught:
                destination.write_events(replace(replica.batch(), steps=Steps()))
            assert caught.value.table == "public.t"
        assert files_of(tmp_path) == before


def files_of(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}
