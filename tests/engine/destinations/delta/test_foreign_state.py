"""Features that other writers give a table: those that pgetl cannot write stop that table alone, with an error that
names the feature; the others change nothing.

Commits are written as Delta-Spark writes them: by their actions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.testing.builders import Replica
from tests.engine.destinations.delta.landing import LANDS, in_threads
from tests.engine.destinations.delta.reading import ANN, BOB, CAT, place, rows_of

MODES: dict[str, dict[str, str]] = {
    "upsert": {},
    "history": {"mode": "history"},
    "landing": LANDS,
    "merge_on_read": {"updates": "merge_on_read"},
}
Fields = list[dict[str, Any]]
Change = Callable[[Fields], None]


def protocol(reader: int, writer: int, *features: str, readers: tuple[str, ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": writer}
    if reader == 3:
        found["readerFeatures"] = list(readers)
    if writer == 7:
        found["writerFeatures"] = ["appendOnly", "invariants", *readers, *features]
    return {"protocol": found}


def metadata(at: Path, properties: dict[str, str], change: Change | None = None) -> dict[str, Any]:
    table = DeltaTable(at)
    fields = json.loads(table.schema().to_json())["fields"]
    if change is not None:
        change(fields)
    about = table.metadata()
    return {
        "metaData": {
            "id": str(about.id),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": {**about.configuration, **properties},
        }
    }


def commit(at: Path, *actions: dict[str, Any]) -> None:
    info = {"commitInfo": {"timestamp": 1, "operation": "SET TBLPROPERTIES"}}
    name = f"{DeltaTable(at).version() + 1:020}.json"
    (at / "_delta_log" / name).write_text("\n".join(map(json.dumps, [info, *actions])))


def renamed(fields: Fields) -> None:
    for number, field in enumerate(fields):
        named = {"delta.columnMapping.id": number + 1, "delta.columnMapping.physicalName": field["name"]}
        field["metadata"].update(named)
    fields[-1]["name"] = "renamed"


def generated(fields: Fields) -> None:
    expression = {"delta.generationExpression": "upper(name)"}
    fields.append({"name": "loud", "type": "string", "nullable": True, "metadata": expression})


def invariant(fields: Fields) -> None:
    fields[-1]["metadata"]["delta.invariants"] = json.dumps({"expression": {"expression": "length(note) < 3"}})


def variant(fields: Fields) -> None:
    nested = {"type": "array", "elementType": "variant", "containsNull": True}
    fields.append({"name": "any", "type": nested, "nullable": True, "metadata": {}})


def enable_column_mapping(at: Path) -> None:
    named = metadata(at, {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}, renamed)
    commit(at, protocol(2, 5), named)


def enable_row_tracking(at: Path) -> None:
    commit(at, protocol(1, 7, "rowTracking", "domainMetadata"), metadata(at, {"delta.enableRowTracking": "true"}))


def enable_commit_timestamps(at: Path) -> None:
    told = metadata(at, {"delta.enableInCommitTimestamps": "true"})
    commit(at, protocol(1, 7, "inCommitTimestamp"), told)


def enable_clustering(at: Path) -> None:
    domain = {"domain": "delta.clustering", "configuration": "{}", "removed": False}
    commit(at, protocol(1, 7, "clustering", "domainMetadata"), {"domainMetadata": domain})


def allow_type_widening(at: Path) -> None:
    commit(at, protocol(3, 7, readers=("typeWidening",)), metadata(at, {"delta.enableTypeWidening": "true"}))


def add_constraint(at: Path) -> None:
    commit(at, protocol(1, 3), metadata(at, {"delta.constraints.short": "length(name) < 5"}))


def add_generated(at: Path) -> None:
    commit(at, protocol(1, 4), metadata(at, {}, generated))


def add_invariant(at: Path) -> None:
    commit(at, metadata(at, {}, invariant))


def require_writer_6(at: Path) -> None:
    commit(at, protocol(1, 6))


def add_variant(at: Path) -> None:
    commit(at, protocol(3, 7, readers=("variantType",)), metadata(at, {}, variant))


def require_unknown_feature(at: Path) -> None:
    commit(at, protocol(3, 7, readers=("martian",)))


def manage_by_catalog(at: Path) -> None:
    commit(at, protocol(3, 7, "inCommitTimestamp", readers=("catalogManaged",)))


def require_reader_4(at: Path) -> None:
    commit(at, protocol(4, 7))


UNFIT = {
    enable_column_mapping: "column mapping",
    enable_row_tracking: "the feature domainMetadata, rowTracking",
    enable_commit_timestamps: "the feature inCommitTimestamp",
    enable_clustering: "the feature clustering, domainMetadata",
    allow_type_widening: "the feature typeWidening",
    add_constraint: "the CHECK constraint short",
    add_generated: "the generated column loud",
    add_invariant: "an invariant of the column note",
    require_writer_6: "version 6 of the protocol for writers",
    add_variant: "the column any of type variant",
    require_unknown_feature: "'martian' is not supported",
    manage_by_catalog: "catalog-managed table",
    require_reader_4: "Unsupported minimum reader version 4",
}


@pytest.mark.parametrize(("meddle", "mode"), list(zip(UNFIT, cycle(sorted(MODES)), strict=False)))
def test_a_feature_that_pgetl_cannot_write_stops_its_table_alone(
    tmp_path: Path, meddle: Callable[[Path], None], mode: str
) -> None:
    """A write raises the error and `lost` returns it, also after a take-over. A copy cannot help, and is refused."""
    first = DeltaDestination(str(tmp_path), "shop", MODES[mode])
    replica, other = (Replica(first, pipeline="shop").create(ANN) for _ in range(2))
    log = place(tmp_path, replica) / "_delta_log"
    meddle(place(tmp_path, replica))
    before = sorted(log.iterdir())
    successor: Any = DeltaDestination(str(tmp_path), "shop", MODES[mode])
    successor.claim("shop", 2)
    assert other.schema.table in successor.positions("shop")
    assert successor.foreign_rows("shop", [replica.schema.table, other.schema.table]) == {}
    (told,) = successor.lost("shop").values()
    replica.epoch = other.epoch = 2
    for destination in (first, successor):
        replica.destination = other.destination = destination
        with pytest.raises(PgetlError) as refused:
            replica.apply(replica.wire().insert(CAT).take())
        for error in (told, refused.value):
            assert (error.kind, error.table) == (ErrorKind.SCHEMA, str(replica.schema.table))
            assert UNFIT[meddle] in error.message
            assert "remove its folder; then copy the table again: `pgetl reset FILE TABLE`" in error.remedy
        other.apply(other.wire().insert(CAT).take())
    replica.generation = 2
    with pytest.raises(PgetlError, match=UNFIT[meddle].replace("(", ".")):
        successor.begin_copy(replica.target, 2)
    assert sorted(log.iterdir()) == before


def test_a_table_is_copied_again_once_the_feature_is_removed(tmp_path: Path) -> None:
    destination: Any = DeltaDestination(str(tmp_path), "shop")
    replica = Replica(destination, pipeline="shop").create(ANN)
    at = place(tmp_path, replica)
    add_constraint(at)
    assert destination.lost("shop")
    DeltaTable(at).alter.drop_constraint("short")
    replica.generation = 2
    replica.copy(2, BOB)
    replica.apply(replica.wire().insert(CAT).take())
    assert destination.lost("shop") == {}
    assert sorted(row[:2] for row in rows_of(at)) == [(2, "Bob"), (3, "Cat")]


def enable_change_data_feed(at: Path) -> None:
    commit(at, protocol(1, 4), metadata(at, {"delta.enableChangeDataFeed": "true"}))


def use_v2_checkpoints(at: Path) -> None:
    commit(at, protocol(3, 7, readers=("v2Checkpoint",)), metadata(at, {"delta.checkpointPolicy": "v2"}))


def allow_deletion_vectors(at: Path) -> None:
    commit(at, protocol(3, 7, readers=("deletionVectors",)), metadata(at, {"delta.enableDeletionVectors": "true"}))


def set_properties(at: Path) -> None:
    commit(at, metadata(at, {"owner": "Ann", "delta.targetFileSize": "1mb"}))


def allow_column_mapping(at: Path) -> None:
    commit(at, protocol(3, 7, readers=("columnMapping",)), metadata(at, {"delta.columnMapping.mode": "none"}))


HARMLESS = [enable_change_data_feed, use_v2_checkpoints, allow_deletion_vectors, set_properties, allow_column_mapping]


@pytest.mark.parametrize(("meddle", "mode"), list(zip(HARMLESS, cycle(sorted(MODES)), strict=False)))
def test_a_feature_that_pgetl_can_write_stops_nothing(
    tmp_path: Path, meddle: Callable[[Path], None], mode: str
) -> None:
    destination = DeltaDestination(str(tmp_path), "shop", MODES[mode])
    replica = Replica(destination, pipeline="shop").create(ANN)
    at = place(tmp_path, replica)
    meddle(at)
    assert destination.lost("shop") == {}
    replica.apply(replica.wire().update((b"1", b"Ann, later", None)).insert(CAT).take())
    if mode == "landing":
        destination.merge("shop", replica.schema.table, in_threads, lambda: False)
    names = pa.table(DeltaTable(at).scan()).column("name").to_pylist()
    assert sorted(names)[-2:] == ["Ann, later", "Cat"]
