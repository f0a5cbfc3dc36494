"""A table that has lost a file is told apart from a store that is away: it alone ends, and can be copied again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.changes.batch import EventBatch, Move
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta.files import data_files
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.destinations.delta.merge import working_set
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.testing.builders import Replica
from tests.engine.destinations.delta.landing import MergedAtOnce
from tests.engine.destinations.delta.reading import ANN, BOB, place, rows_of
from tests.raising import raises

ANN_NOW = (ANN[0], b"Ann, later", *ANN[2:])


def lose_a_file(at: Path) -> None:
    (path,) = at.rglob("*.parquet")
    path.unlink()


def refused(replica: Replica, batch: EventBatch) -> PgetlError:
    with pytest.raises(PgetlError) as error:
        replica.destination.write_events(batch)
    return error.value


def test_the_table_alone_ends_until_it_is_copied_again(tmp_path: Path, replica: Replica) -> None:
    destination: Any = replica.destination
    other = Replica(destination, pipeline="shop").create(ANN)
    lose_a_file(place(tmp_path, replica))
    both = replica.batch(replica.wire().update(ANN_NOW).take(), other.wire().update(ANN_NOW).take())
    moves: dict[Any, Move] = {**both.moves, **other.batch().moves}
    error = refused(replica, replace(both, moves=moves))
    assert (error.kind, error.table) == (ErrorKind.DAMAGED, str(replica.schema.table))
    assert error.directive.retry == "manual"
    assert "pgetl reset FILE TABLE" in error.remedy
    other.apply(other.wire().update(ANN_NOW).take())

    replica.generation += 1
    replica.copy(2, BOB)
    assert len(rows_of(place(tmp_path, replica))) == 1


def test_what_others_have_taken_out_of_the_log_meanwhile_is_no_damage(
    tmp_path: Path, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = data_files.FileReader.__init__

    def overtaken(self: Any, at: TableFolder, path: str, schema: Any) -> None:
        monkeypatch.setattr(data_files.FileReader, "__init__", open_file)
        DeltaTable(at.uri).delete()
        lose_a_file(Path(at.uri))
        open_file(self, at, path, schema)

    monkeypatch.setattr(data_files.FileReader, "__init__", overtaken)
    replica.apply(replica.wire().update(ANN_NOW).insert(BOB).take())
    assert len(rows_of(place(tmp_path, replica))) == 1


def test_a_store_that_is_away_altogether_is_waited_for(tmp_path: Path, replica: Replica) -> None:
    batch = replica.batch(replica.wire().update(ANN_NOW).take())
    folders, away = list(tmp_path.iterdir()), tmp_path / "away"
    away.mkdir()
    for folder in folders:
        shutil.move(folder, away)
    assert refused(replica, batch).transient
    for folder in folders:
        shutil.move(away / folder.name, folder)
    replica.destination.write_events(batch)


@pytest.mark.parametrize("open_", [DeltaDestination, MergedAtOnce], ids=["worker", "landing"])
def test_what_a_vacuum_takes_from_a_long_batch_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_: Callable[[str, str], DeltaDestination]
) -> None:
    """One of others, that removes what no commit names yet."""
    merge = working_set.WorkingSet.merge
    replica = Replica(open_(str(tmp_path), "shop"), pipeline="shop").create(ANN)
    at = place(tmp_path, replica)
    before = set(at.rglob("*.parquet"))

    def vacuumed(self: Any, changes: Any) -> Any:
        missed = merge(self, changes)
        if self._place.uri == str(at):
            monkeypatch.setattr(working_set.WorkingSet, "merge", merge)
            (set(at.rglob("*.parquet")) - before).pop().unlink()
        return missed

    monkeypatch.setattr(working_set, "_LONG_SECONDS", 0)
    monkeypatch.setattr(working_set.WorkingSet, "merge", vacuumed)
    replica.apply(replica.wire().update(ANN_NOW).insert(BOB).take())
    assert sorted(row[1] for row in rows_of(at)) == ["Ann, later", "Bob"]
    assert len(set(at.rglob("*.parquet")) - before) == len(DeltaTable(at).file_uris())


def test_a_copy_that_has_lost_a_file_is_not_published(tmp_path: Path, replica: Replica) -> None:
    destination: Any = replica.destination
    destination.begin_copy(replica.target, 2)
    for number, row in enumerate((ANN, BOB)):
        replica.stage(2, number, [row])
    next(place(tmp_path, replica).glob("copy-shop-2/*.parquet")).unlink()
    with raises(ErrorKind.COPY_DIED, replica.schema.table, match="1 of the files that copy attempt 2 has written"):
        destination.finish_copy(replica.target, 2, replica.position, 2)
    assert len(rows_of(place(tmp_path, replica))) == 1


def test_what_is_recorded_of_the_pipeline_is_restored_under_a_worker(tmp_path: Path, replica: Replica) -> None:
    """It is told that it was superseded, as it is when it asks for the first time, and begins anew."""
    destination: Any = replica.destination
    shutil.copytree(tmp_path / "_pgetl", tmp_path / "backup")
    for epoch in (2, 3):
        destination.claim("shop", epoch)
    shutil.rmtree(tmp_path / "_pgetl")
    shutil.move(tmp_path / "backup", tmp_path / "_pgetl")
    replica.epoch = 3
    assert refused(replica, replica.batch(replica.wire().insert(BOB).take())).kind is ErrorKind.FENCED
    destination.claim("shop", 3)
    replica.apply(replica.wire().insert(BOB).take())
    assert len(rows_of(place(tmp_path, replica))) == 2


def lose_a_commit(log: Path) -> None:
    (log / f"{2:020}.json").unlink()


def lose_the_first_commit(log: Path) -> None:
    (log / f"{0:020}.json").unlink()


def garble_a_commit(log: Path) -> None:
    (log / f"{2:020}.json").write_bytes(bytes(300))


def garble_the_last_commit(log: Path) -> None:
    max(log.glob("*.json")).write_bytes(bytes(300))


def lose_the_checkpoint(log: Path) -> None:
    DeltaTable(log.parent).create_checkpoint()
    for path in log.glob("*.checkpoint*.parquet"):
        path.unlink()


def ask_for_more(log: Path) -> None:
    """A feature that delta-rs cannot write."""
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking", "domainMetadata"]}
    at = DeltaTable(log.parent).version() + 1
    (log / f"{at:020}.json").write_text(json.dumps({"protocol": protocol}))


def forbid_changes(log: Path) -> None:
    DeltaTable(log.parent).alter.set_table_properties({"delta.appendOnly": "true"})


BROKEN = [lose_a_commit, lose_the_first_commit, garble_a_commit, garble_the_last_commit, lose_the_checkpoint]


@pytest.mark.parametrize("break_", [*BROKEN, ask_for_more, forbid_changes])
def test_a_log_that_cannot_be_read_or_added_to_ends_its_table_alone(
    tmp_path: Path, replica: Replica, break_: Callable[[Path], None]
) -> None:
    for _ in range(2):
        replica.apply(replica.wire().update(ANN).take())
    other = Replica(replica.destination, pipeline="shop").create(ANN)
    break_(place(tmp_path, replica) / "_delta_log")
    destination: Any = DeltaDestination(str(tmp_path), "shop")
    destination.claim("shop", 2)
    assert other.schema.table in destination.positions("shop")
    assert destination.foreign_rows("shop", [other.schema.table, replica.schema.table]) == {}
    for one in (replica, other):
        one.destination, one.epoch = destination, 2
    both = replica.batch(replica.wire().update(ANN_NOW).take(), other.wire().update(ANN_NOW).take())
    error = refused(replica, replace(both, moves={**both.moves, **other.batch().moves}))
    assert error.table == str(replica.schema.table)
    assert error.directive.retry == "manual"
    assert "remove its folder; then copy the table again: `pgetl reset FILE TABLE`" in error.remedy
    other.apply(other.wire().update(ANN_NOW).take())
    lost = DeltaDestination(str(tmp_path), "shop").lost("shop")
    assert set(lost) <= {replica.schema.table}

    replica.generation += 1
    if break_ in BROKEN:
        assert begin(destination, replica).table == str(replica.schema.table)
    shutil.rmtree(place(tmp_path, replica))
    destination.claim("shop", 2)
    replica.copy(3, BOB)
    assert len(rows_of(place(tmp_path, replica))) == 1


def test_a_pipeline_can_be_forgotten_of_which_a_log_cannot_be_read(tmp_path: Path, replica: Replica) -> None:
    other = Replica(replica.destination, pipeline="shop").create(ANN)
    garble_the_last_commit(place(tmp_path, replica) / "_delta_log")
    destination: Any = DeltaDestination(str(tmp_path), "shop")
    assert destination.forget("shop")
    assert destination.positions("shop") == {}
    assert destination.foreign_rows("shop", [other.schema.table]) == {}


def begin(destination: Any, replica: Replica) -> PgetlError:
    with pytest.raises(PgetlError) as error:
        destination.begin_copy(replica.target, 2)
    return error.value
