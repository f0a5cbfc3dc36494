"""Copies of many tables are noted in the lake's book at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta.log.storage import Lake
from airflow_provider_pgetl.engine.destinations.delta.metadata import LakeMetadata
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing.builders import Replica
from tests.engine.destinations.delta.reading import rows_of


def named(replica: Replica, name: str, generation: int = 1) -> Target:
    schema = replace(replica.schema, table=TableName(replica.schema.table.schema, name))
    return Target("shop", schema, generation)


def version(folder: Path) -> int:
    return DeltaTable(str(folder / "_pgetl" / "shop")).version()


def test_the_copies_of_many_tables_cost_the_book_one_commit(tmp_path: Path, replica: Replica) -> None:
    targets = [named(replica, f"t{number}") for number in range(20)]
    destination, before = DeltaDestination(str(tmp_path), "shop"), version(tmp_path)
    for _ in range(2):
        destination.announce_copies(targets, 7)
        for target in targets:
            destination.begin_copy(target, 7)
    assert version(tmp_path) == before + 1
    for target in targets:
        assert DeltaDestination(str(tmp_path), "shop").write_range_rows(target, 7, 0, replica.position, []) == 0


def test_a_table_of_others_is_not_noted_and_refused_when_its_copy_begins(tmp_path: Path, replica: Replica) -> None:
    theirs, ours = named(replica, "theirs"), named(replica, "ours")
    write_deltalake(str(tmp_path / theirs.schema.table.schema / "theirs"), pa.table({"id": [1]}))
    destination = DeltaDestination(str(tmp_path), "shop")
    destination.announce_copies([theirs, ours], 7)
    known = LakeMetadata(Lake(str(tmp_path)), "shop").read().tables
    assert ours.schema.table in known
    assert theirs.schema.table not in known
    with pytest.raises(PgetlError, match="theirs"):
        destination.begin_copy(theirs, 7)


def test_what_readers_see_stays_until_the_announced_copy_is_published(tmp_path: Path, replica: Replica) -> None:
    destination, target = DeltaDestination(str(tmp_path), "shop"), replace(replica.target, generation=2)
    destination.announce_copies([target], 7)
    destination.begin_copy(target, 7)
    table = replica.schema.table
    assert len(rows_of(tmp_path / table.schema / table.name)) == 1


def test_an_attempt_that_was_superseded_is_passed_over(tmp_path: Path, replica: Replica) -> None:
    destination, target = DeltaDestination(str(tmp_path), "shop"), named(replica, "t")
    destination.announce_copies([target], 7)
    destination.announce_copies([target], 6)
    assert LakeMetadata(Lake(str(tmp_path)), "shop").read().tables[target.schema.table].attempt == 7
