"""Who reads tables with deletion vectors: those that Delta-Spark writes, and all forms that the protocol allows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, DeltaProtocolError

from tests.third_party.delta_spark import DeltaSpark
from tests.third_party.handwritten import (
    Handwritten,
    decode,
    encode,
    from_z85,
    inline_vector,
    read_vector,
    to_z85,
    vector_file,
    write_vectors,
)
from tests.third_party.readers import knowing_vectors, readers

Ids = set[int]
ALL = set(range(30))


def three_files(path: Path, properties: Mapping[str, str] | None = None) -> Handwritten:
    ranges = [{"id": list(range(at, at + 10))} for at in (0, 10, 20)]
    return Handwritten.create(path, *ranges, properties=properties)


def several_in_a_file(path: Path) -> Ids:
    table = three_files(path)
    one, two, three = table.paths
    table.delete({one: {1}, two: {0, 9}, three: {5}}, {"txn": {"appId": "position", "version": 7}})
    return ALL - {1, 10, 19, 25}


def the_same_file_again(path: Path) -> Ids:
    table = three_files(path)
    for deleted in ({1}, {2}, {3, 9}):
        table.delete({table.paths[0]: deleted})
    return ALL - {1, 2, 3, 9}


def every_row_of_a_file(path: Path) -> Ids:
    table = three_files(path)
    table.delete({table.paths[0]: set(range(10))})
    return ALL - set(range(10))


def with_new_rows(path: Path) -> Ids:
    """As an update: the old row is deleted, the new one stands in another file."""
    table = three_files(path)
    table.delete({table.paths[0]: {1}}, table.write({"id": [100]}))
    return ALL - {1} | {100}


def folded(path: Path) -> Ids:
    """Compaction: no row changes."""
    table = three_files(path)
    one, two, _ = table.paths
    table.delete({one: {1}, two: {2}})
    actions = [table.removed(one), table.removed(two), table.write({"id": sorted(set(range(20)) - {1, 12})})]
    for action in actions:
        next(iter(action.values()))["dataChange"] = False
    table.commit(*actions, operation="OPTIMIZE")
    return ALL - {1, 12}


def inline(path: Path) -> Ids:
    table = three_files(path)
    table.commit(*table.marked(table.paths[0], inline_vector({1, 3})))
    return ALL - {1, 3}


def by_absolute_path(path: Path) -> Ids:
    table = three_files(path)
    (vector,) = write_vectors(path, [{1, 3}])
    file = path / vector_file(vector["pathOrInlineDv"])
    table.commit(*table.marked(table.paths[0], {**vector, "storageType": "p", "pathOrInlineDv": f"file://{file}"}))
    return ALL - {1, 3}


def in_a_folder(path: Path) -> Ids:
    table = three_files(path)
    (vector,) = write_vectors(path, [{1, 3}], prefix="ab")
    table.commit(*table.marked(table.paths[0], vector))
    return ALL - {1, 3}


def many_rows(path: Path) -> Ids:
    """Containers of all kinds: sparse, dense, runs; beyond the first 65,536 positions."""
    table = Handwritten.create(path, {"id": list(range(300_000))})
    deleted = {one for one in range(300_000) if one % 3 == 0 or 100_000 < one < 200_000 or one in (250_001, 250_003)}
    table.delete({table.paths[0]: deleted})
    return set(range(300_000)) - deleted


def from_a_checkpoint(path: Path) -> Ids:
    table = three_files(path)
    one, two, three = table.paths
    table.delete({one: {1}, two: {0, 9}})
    table.commit(*table.marked(three, inline_vector({2})))
    table.checkpoint()
    return ALL - {1, 10, 19, 22}


def from_a_checkpoint_of_delta_rs(path: Path) -> Ids:
    left = several_in_a_file(path)
    DeltaTable(path).create_checkpoint()
    (path / "_delta_log" / f"{0:020}.json").unlink()
    return left


def with_the_protocol_raised(path: Path) -> Ids:
    """In the very commit that has the first vector; the table had versions (1, 2) of the protocol."""
    table = three_files(path)
    log = path / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    plain = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    log.write_text("\n".join(json.dumps(plain if "protocol" in line else line) for line in lines))
    assert DeltaTable(path).protocol().min_writer_version == 2
    table.delete({table.paths[0]: {1}}, table.first[0])
    return ALL - {1}


FORMS: list[Callable[[Path], Ids]] = [
    several_in_a_file,
    the_same_file_again,
    every_row_of_a_file,
    with_new_rows,
    folded,
    inline,
    by_absolute_path,
    in_a_folder,
    many_rows,
    from_a_checkpoint,
    from_a_checkpoint_of_delta_rs,
    with_the_protocol_raised,
]


def assert_all_read(path: Path, ids: Ids, spark: DeltaSpark | None = None) -> None:
    """The readers that know vectors see these rows; the others refuse."""
    expected = sorted(ids)
    for reader in readers(spark):
        if reader.knows_vectors:
            assert sorted(row[0] for row in reader.rows(path)) == expected, reader.name
        else:
            with pytest.raises(DeltaProtocolError, match="deletionVectors"):
                reader.read(path)


@pytest.fixture(params=["by those without Java", pytest.param("by Spark", marks=[pytest.mark.slow, pytest.mark.spark])])
def spark(request: pytest.FixtureRequest) -> DeltaSpark | None:
    return request.getfixturevalue("delta_spark") if request.param == "by Spark" else None


@pytest.mark.parametrize("write", FORMS)
def test_each_form_is_read_by_those_who_know_vectors(
    tmp_path: Path, spark: DeltaSpark | None, write: Callable[[Path], Ids]
) -> None:
    assert_all_read(tmp_path / "t", write(tmp_path / "t"), spark)


def vectors_of(path: Path) -> list[dict[str, Any]]:
    """Of all adds in the log."""
    commits = sorted((path / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for file in commits for line in file.read_text().splitlines()]
    adds = [action["add"] for action in actions if "add" in action]
    return [add["deletionVector"] for add in adds if "deletionVector" in add]


CREATE = "create table {table} (id bigint, note string) using delta"
ENABLE = "alter table {table} set tblproperties (delta.enableDeletionVectors = true)"
FILL = "insert into {table} select id, null from range(0, 1000, 1, 1)"


def changed_by_spark(path: Path, spark: DeltaSpark, *, first: str = CREATE) -> Ids:
    spark.sql(path, first, FILL, ENABLE)
    spark.sql(path, "delete from {table} where id in (3, 7)", "update {table} set note = 'x' where id in (11, 500)")
    merge = "when matched then update set note = 'm' when not matched then insert (id) values (s.id)"
    spark.sql(path, f"merge into {{table}} t using (values 12L, 2000L as s(id)) s on t.id = s.id {merge}")
    return set(range(1000)) - {3, 7} | {2000}


def test_what_spark_writes_is_read_by_all(tmp_path: Path, delta_spark: DeltaSpark) -> None:
    """Its vectors are files alone, and their bytes are those that we would write."""
    path = tmp_path / "t"
    left = changed_by_spark(path, delta_spark)
    assert_all_read(path, left, delta_spark)
    vectors = vectors_of(path)
    assert [read_vector(path, one) for one in vectors] == [{3, 7}, {3, 7, 11, 500}, {3, 7, 11, 12, 500}]
    for one in vectors:
        data = (path / vector_file(one["pathOrInlineDv"])).read_bytes()[5:-4]
        assert (one["storageType"], one["offset"]) == ("u", 1)
        assert encode(decode(data)) == data


def checkpointed_by_spark(path: Path, spark: DeltaSpark, *properties: str) -> Ids:
    """No commit is left but those from the checkpoint on."""
    told = ", ".join(("delta.checkpointInterval = 2", *properties))
    spark.sql(path, CREATE, f"alter table {{table}} set tblproperties ({told})", FILL, ENABLE)
    for ids in ("3, 7", "20", "21", "22"):
        spark.sql(path, f"delete from {{table}} where id in ({ids})")
    log = path / "_delta_log"
    at = max(int(file.name[:20]) for file in log.glob("[0-9]*.checkpoint*"))
    for version in range(at):
        (log / f"{version:020}.json").unlink()
    return set(range(1000)) - {3, 7, 20, 21, 22}


def test_checkpoints_of_spark_keep_vectors_for_all(tmp_path: Path, delta_spark: DeltaSpark) -> None:
    path = tmp_path / "t"
    assert_all_read(path, checkpointed_by_spark(path, delta_spark), delta_spark)


def test_checkpoints_of_version_2_are_not_for_polars(tmp_path: Path, delta_spark: DeltaSpark) -> None:
    path = tmp_path / "t"
    left = checkpointed_by_spark(path, delta_spark, "delta.checkpointPolicy = 'v2'")
    for reader in knowing_vectors(delta_spark):
        if reader.name == "polars":
            with pytest.raises(DeltaProtocolError, match="v2Checkpoint"):
                reader.read(path)
        else:
            assert {row[0] for row in reader.rows(path)} == left, reader.name


def test_spark_goes_on_with_a_table_that_was_written_by_hand(tmp_path: Path, delta_spark: DeltaSpark) -> None:
    """It reads vectors wherever the protocol has them, and writes its own where the property says so."""
    path = tmp_path / "t"
    left = several_in_a_file(path)
    for enable, deleted in ((False, 3), (True, 4)):
        known = len(vectors_of(path))
        delta_spark.sql(path, *([ENABLE] if enable else []), f"delete from {{table}} where id = {deleted}")
        assert (len(vectors_of(path)) > known) == enable
        left -= {deleted}
        assert_all_read(path, left, delta_spark)
    delta_spark.sql(path, "optimize {table}")
    assert_all_read(path, left, delta_spark)
    delta_spark.sql(path, "vacuum {table} retain 0 hours")
    assert_all_read(path, left, delta_spark)
    assert not list(path.glob("deletion_vector_*"))


# -- what a writer has to know of delta-rs


def test_a_full_vacuum_of_delta_rs_removes_vectors_that_are_live(tmp_path: Path) -> None:
    path = tmp_path / "t"
    left = the_same_file_again(path)
    keep: dict[str, Any] = {"retention_hours": 0, "dry_run": False, "enforce_retention_duration": False}
    assert DeltaTable(path).vacuum(**keep) == []
    assert_all_read(path, left)
    assert len(DeltaTable(path).vacuum(**keep, full=True)) == len(vectors_of(path)) == 3
    for reader in knowing_vectors():
        with pytest.raises((DeltaError, duckdb.IOException), match=r"(?i)file not found") as refused:
            reader.read(path)
        assert "deletion_vector_" in str(refused.value)


def test_delta_rs_counts_deleted_rows(tmp_path: Path) -> None:
    path = tmp_path / "t"
    assert len(several_in_a_file(path)) == 26
    assert DeltaTable(path).count() == 30


def test_texts_of_the_encoding() -> None:
    """The example of ZeroMQ's RFC 32, by which Base85 is defined here."""
    data = bytes.fromhex("864fd26fb559f75b")
    assert to_z85(data) == "HelloWorld"
    assert from_z85("HelloWorld") == data
