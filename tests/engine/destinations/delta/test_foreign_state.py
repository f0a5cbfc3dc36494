"""What others give a table is that table's trouble alone, and is called by its name; or it is no trouble at all.

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


def map_columns(at: Path) -> None:
    named = metadata(at, {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}, renamed)
    commit(at, protocol(2, 5), named)


def track_rows(at: Path) -> None:
    commit(at, protocol(1, 7, "rowTracking", "domainMetadata"), metadata(at, {"delta.enableRowTracking": "true"}))


def time_commits(at: Path) -> None:
    told = metadata(at, {"delta.enableInCommitTimestamps": "true"})
    commit(at, protocol(1, 7, "inCommitTimestamp"), told)


def cluster(at: Path) -> None:
    domain = {"domain": "delta.clustering", "configuration": "{}", "removed": False}
    commit(at, protocol(1, 7, "clustering", "domainMetadata"), {"domainMetadata": domain})


def widen_types(at: Path) -> None:
    commit(at, protocol(3, 7, readers=("typeWidening",)), metadata(at, {"delta.enableTypeWidening": "true"}))


def constrain(at: Path) -> None:
    commit(at, protocol(1, 3), metadata(at, {"delta.constraints.short": "length(name) < 5"}))


def generate(at: Path) -> None:
    commit(at, protocol(1, 4), metadata(at, {}, generated))


def forbid(at: Path) -> None:
    commit(at, metadata(at, {}, invariant))


def identify(at: Path) -> None:
    commit(at, protocol(1, 6))


def hold_anything(at: Path) -> None:
    commit(at, protocol(3, 7, readers=("variantType",)), metadata(at, {}, variant))


def invent(at: Path) -> None:
    commit(at, protocol(3, 7, readers=("martian",)))


def have_a_catalog(at: Path) -> None:
    commit(at, protocol(3, 7, "inCommitTimestamp", readers=("catalogManaged",)))


def confuse(at: Path) -> None:
    commit(at, protocol(4, 7))


UNFIT = {
    map_columns: "column mapping",
    track_rows: "the feature domainMetadata, rowTracking",
    time_commits: "the feature inCommitTimestamp",
    cluster: "the feature clustering, domainMetadata",
    widen_types: "the feature typeWidening",
    constrain: "the CHECK constraint short",
    generate: "the generated column loud",
    forbid: "an invariant of the column note",
    identify: "version 6 of the protocol for writers",
    hold_anything: "the column any of type variant",
    invent: "'martian' is not supported",
    have_a_catalog: "catalog-managed table",
    confuse: "Unsupported minimum reader version 4",
}


@pytest.mark.parametrize(("meddle", "mode"), list(zip(UNFIT, cycle(sorted(MODES)), strict=False)))
def test_what_no_writer_of_ours_can_keep_to_ends_its_table_alone(
    tmp_path: Path, meddle: Callable[[Path], None], mode: str
) -> None:
    """Told by a write and by a look without one; a take-over changes nothing of it. A copy can do nothing about it
    either, and so does not begin."""
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


def test_a_table_is_written_to_again_by_a_copy_once_it_is_fit(tmp_path: Path) -> None:
    destination: Any = DeltaDestination(str(tmp_path), "shop")
    replica = Replica(destination, pipeline="shop").create(ANN)
    at = place(tmp_path, replica)
    constrain(at)
    assert destination.lost("shop")
    DeltaTable(at).alter.drop_constraint("short")
    replica.generation = 2
    replica.copy(2, BOB)
    replica.apply(replica.wire().insert(CAT).take())
    assert destination.lost("shop") == {}
    assert sorted(row[:2] for row in rows_of(at)) == [(2, "Bob"), (3, "Cat")]


def feed_changes(at: Path) -> None:
    commit(at, protocol(1, 4), metadata(at, {"delta.enableChangeDataFeed": "true"}))


def checkpoint_anew(at: Path) -> None:
    commit(at, protocol(3, 7, readers=("v2Checkpoint",)), metadata(at, {"delta.checkpointPolicy": "v2"}))


def allow_vectors(at: Path) -> None:
    commit(at, protocol(3, 7, readers=("deletionVectors",)), metadata(at, {"delta.enableDeletionVectors": "true"}))


def say_a_word(at: Path) -> None:
    commit(at, metadata(at, {"owner": "Ann", "delta.targetFileSize": "1mb"}))


def may_map_columns(at: Path) -> None:
    commit(at, protocol(3, 7, readers=("columnMapping",)), metadata(at, {"delta.columnMapping.mode": "none"}))


HARMLESS = [feed_changes, checkpoint_anew, allow_vectors, say_a_word, may_map_columns]


@pytest.mark.parametrize(("meddle", "mode"), list(zip(HARMLESS, cycle(sorted(MODES)), strict=False)))
def test_what_is_no_trouble(tmp_path: Path, meddle: Callable[[Path], None], mode: str) -> None:
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
