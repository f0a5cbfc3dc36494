"""Commits that land and are said to be in their own way: the store's first answer was lost, so that it was asked twice.

By then others may have committed on top. What landed counts, and no file of it may go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.changes.batch import TablePosition
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination, maintenance
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.testing.builders import Replica
from tests.engine.destinations.delta.landing import LANDS, merge_all
from tests.engine.destinations.delta.reading import ANN, BOB, CAT, rows_of

OPTIONS = {
    "upsert": {},
    "history": {"mode": "history"},
    "landing": LANDS,
    "merge_on_read": {"updates": "merge_on_read"},
}


class Lake:
    """One table, and whoever else works on it."""

    def __init__(self, folder: Path, options: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._options = options
        self._patch = patch
        self.replica = Replica(self.open(), pipeline="shop").create(ANN)
        table = self.replica.schema.table
        self.place = folder / table.schema / table.name

    def open(self) -> Any:
        return DeltaDestination(str(self._folder), "shop", {"housekeeping": False, **self._options})

    def ids(self) -> list[int]:
        """Of what readers find in the table, or in its log, less what says that the log is void."""
        at = [field.name for field in DeltaTable(self.place).schema().fields].index("id")
        return sorted(row[at] for row in rows_of(self.place) if row[at] is not None)

    def asked_twice(self, meanwhile: Callable[[], object]) -> None:
        """The next commit lands, then this happens, then the store is asked again."""
        commit, to_come = DeltaTable.create_write_transaction, [meanwhile]

        def twice(table: DeltaTable, *given: Any, **named: Any) -> None:
            if to_come:
                happens = to_come.pop()
                commit(DeltaTable(table.table_uri, table.version()), *given, **named)
                happens()
            commit(table, *given, **named)

        self._patch.setattr(DeltaTable, "create_write_transaction", twice)

    # -- what others do

    def nothing(self) -> None: ...

    def claim(self) -> None:
        self.open().claim("shop", 2)

    def begin_copy(self) -> None:
        self.open().begin_copy(self.replica.target, 2)

    def write_properties(self) -> None:
        DeltaTable(self.place).alter.set_table_properties({"delta.appendOnly": "false"})

    def compact(self) -> None:
        """All that the table holds, into one file."""
        DeltaTable(self.place).optimize.compact()

    def merge(self) -> None:
        merge_all(self.open())

    def land_and_merge(self) -> None:
        """Another writer of the same epoch goes on, and its changes replace the files just committed."""
        other = self.open()
        position = other.positions("shop")[self.replica.schema.table].position
        own = Replica(other, self.replica.schema, "shop", position=position)
        own.apply(own.wire().update((b"2", b"Bobby", None)).insert(CAT).take())
        self.merge()


@pytest.fixture
def lake(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> Lake:
    return Lake(tmp_path, OPTIONS[mode], monkeypatch)


BY_WORKERS = [Lake.nothing, Lake.claim, Lake.begin_copy, Lake.write_properties, Lake.compact]


@pytest.mark.parametrize("mode", ["upsert", "history"])
@pytest.mark.parametrize("meanwhile", BY_WORKERS)
def test_a_batch(lake: Lake, meanwhile: Callable[[Lake], None]) -> None:
    batch = lake.replica.batch(lake.replica.wire().insert(BOB).take())
    lake.asked_twice(lambda: meanwhile(lake))
    lake.replica.destination.write_events(batch)
    assert lake.ids() == [1, 2]


@pytest.mark.parametrize("mode", ["landing"])
@pytest.mark.parametrize("meanwhile", [Lake.nothing, Lake.claim, Lake.merge, Lake.land_and_merge])
def test_a_batch_that_lands(lake: Lake, meanwhile: Callable[[Lake], None]) -> None:
    batch = lake.replica.batch(lake.replica.wire().insert(BOB).take())
    lake.asked_twice(lambda: meanwhile(lake))
    lake.replica.destination.write_events(batch)
    lake.merge()
    assert lake.ids() == [1, 2, *([3] if meanwhile is Lake.land_and_merge else [])]


@pytest.mark.parametrize("mode", ["landing"])
@pytest.mark.parametrize("meanwhile", [*BY_WORKERS, Lake.merge, Lake.land_and_merge])
def test_a_merge_of_what_landed(lake: Lake, meanwhile: Callable[[Lake], None]) -> None:
    lake.replica.apply(lake.replica.wire().update((b"1", b"Anna", None)).insert(BOB).take())
    lake.asked_twice(lambda: meanwhile(lake))
    (merged,) = merge_all(lake.open()).values()
    assert merged.batches == 1
    assert lake.ids() == [1, 2, *([3] if meanwhile is Lake.land_and_merge else [])]


@pytest.mark.parametrize("mode", ["upsert", "history"])
@pytest.mark.parametrize("meanwhile", BY_WORKERS)
def test_a_compaction(lake: Lake, meanwhile: Callable[[Lake], None]) -> None:
    for number in range(2, 20):
        lake.replica.apply(lake.replica.wire().insert((b"%d" % number, None, None)).take())
    worker: Any = lake.replica.destination
    log = worker._log("shop", lake.replica.schema.table)
    lake.asked_twice(lambda: meanwhile(lake))
    assert maintenance.Compaction().run(log, worker._shape(lake.replica.schema))
    assert len(DeltaTable(lake.place).file_uris()) == 1
    assert lake.ids() == list(range(1, 20))


@pytest.mark.parametrize("mode", OPTIONS)
@pytest.mark.parametrize("meanwhile", [Lake.nothing, Lake.claim, Lake.write_properties])
def test_a_publication(lake: Lake, meanwhile: Callable[[Lake], None]) -> None:
    other: Any = lake.open()
    other.begin_copy(lake.replica.target, 2)
    lake.replica.stage(2, 0, [BOB, CAT])
    lake.asked_twice(lambda: meanwhile(lake))
    other.finish_copy(lake.replica.target, 2, Boundary(50))
    assert other.positions("shop") == {lake.replica.schema.table: TablePosition(1, Boundary(50))}
    assert [one for one in lake.ids() if one != 1] == [2, 3]
