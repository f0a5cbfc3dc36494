"""Deletion vectors as bytes: written and read, of our own and in all the forms that others give them."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta.files.deletion_vectors import (
    Marks,
    read_marks,
    vector_path,
    write_marks,
)
from airflow_provider_pgetl.engine.destinations.delta.log.actions import VectorReference
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.testing.builders import Line, Replica
from tests.raising import raises
from tests.third_party.handwritten import decode, encode, inline_vector, read_vector, vector_file, write_vectors
from tests.third_party.readers import knowing_vectors

Action = dict[str, Any]
OPTIONS = {"updates": "merge_on_read", "housekeeping": False}


def ints(*rows: int) -> Any:
    return np.array(rows, np.int64)


def marks_of(*rows: int) -> Marks:
    marks = Marks()
    marks.add(ints(*rows))
    return marks


def sets() -> list[list[int]]:
    """Of all kinds of containers: few rows, many, runs, several groups of 65536, beyond 32 bits."""
    dice = random.Random(7)
    scattered = [sorted(dice.sample(range(size * 50), size)) for size in (1, 2, 100, 5000)]
    return [*scattered, [0], list(range(100_000)), list(range(0, 200_000, 2)), [0, 65_535, 65_536, 2**32, 2**40]]


@pytest.mark.parametrize("rows", sets(), ids=lambda rows: f"{len(rows)} rows")
def test_vectors_are_those_of_every_writer(tmp_path: Path, rows: list[int]) -> None:
    place = TableFolder(str(tmp_path))
    assert marks_of(*rows).encode() == encode(rows)
    assert decode(marks_of(*rows).encode()) == set(rows)
    (reference,) = write_marks(place, {"a": marks_of(*rows)}).values()
    assert read_vector(tmp_path, reference.as_json()) == set(rows)
    assert read_marks(place, reference) == marks_of(*rows)
    theirs = [write_vectors(tmp_path, [[9], rows])[1], write_vectors(tmp_path, [rows], prefix="ab")[0]]
    for action in [*theirs, inline_vector(rows)]:
        assert read_marks(place, VectorReference.of_action({"deletionVector": action})) == marks_of(*rows)


def test_a_file_of_vectors_has_the_name_that_the_log_gives_it(tmp_path: Path) -> None:
    place = TableFolder(str(tmp_path))
    for _ in range(200):
        (reference,) = write_marks(place, {"a": marks_of(1)}).values()
        path = vector_path(place, reference)
        assert path == vector_file(reference.path_or_inline)
        assert (tmp_path / path).exists()
        (tmp_path / path).unlink()


def test_marks_tell_of_their_rows_as_sets_do() -> None:
    dice = random.Random(11)
    for rows in [[], *sets()[:-1]]:
        marks, held = marks_of(*rows), set(rows)
        assert (len(marks), bool(marks)) == (len(rows), bool(rows))
        for first in (0, 1, 7, 65_535, dice.randrange(300_000)):
            for count in (1, 2, 1000, 70_000):
                expected = sorted(row - first for row in held if first <= row < first + count)
                assert marks.within(first, count).tolist() == expected
        asked = sorted(dice.sample(range(300_000), 500))
        assert marks.among(ints(*asked)).tolist() == [row in held for row in asked]


def test_a_copy_of_marks_is_its_own() -> None:
    marks = marks_of(1)
    marks.copy().add(ints(2))
    assert marks == marks_of(1)
    assert marks != marks_of(1, 2)


def spoiled(place: TableFolder, change: Callable[[bytearray], None]) -> VectorReference:
    (reference,) = write_marks(place, {"a": marks_of(3, 7)}).values()
    content = bytearray(place.read(vector_path(place, reference)))
    change(content)
    place.write(vector_path(place, reference), bytes(content))
    return reference


def other_sum(content: bytearray) -> None:
    content[-1] ^= 1


def other_row(content: bytearray) -> None:
    content[-6] ^= 1


def other_size(content: bytearray) -> None:
    content[4] ^= 1


def cut(content: bytearray) -> None:
    del content[10:]


def cut_off(content: bytearray) -> None:
    del content[:]


@pytest.mark.parametrize("change", [other_sum, other_row, other_size, cut, cut_off])
def test_damage_is_told(tmp_path: Path, change: Callable[[bytearray], None]) -> None:
    assert_damaged(tmp_path, spoiled(TableFolder(str(tmp_path)), change))


@pytest.mark.parametrize(
    "reference",
    [
        VectorReference("u", "too short", 1, 34, 1),
        VectorReference("u", '"' * 20, 1, 34, 1),
        VectorReference("u", "0" * 20, 1, 34, 1),
        VectorReference("p", "file:///elsewhere/deletion_vector.bin", 1, 34, 1),
        VectorReference("x", "0" * 20, 1, 34, 1),
        VectorReference("i", "00000", None, 4, 1),
        VectorReference("i", "~~~~~", None, 4, 1),
    ],
    ids=str,
)
def test_what_is_no_vector_is_damage_of_its_table(tmp_path: Path, reference: VectorReference) -> None:
    assert_damaged(tmp_path, reference)


def test_another_number_of_rows_is_damage(tmp_path: Path) -> None:
    action = {**inline_vector([1, 2]), "cardinality": 3}
    assert_damaged(tmp_path, VectorReference.of_action({"deletionVector": action}))


def assert_damaged(folder: Path, reference: VectorReference | None) -> None:
    with raises(ErrorKind.DAMAGED, match="deletion vector"):
        read_marks(TableFolder(str(folder)), reference)


# -- in a table


def line(number: int) -> Line:
    return b"%d" % number, b"n%d" % number, None


def ids(path: Path) -> list[int]:
    found = {reader.name: [row[0] for row in reader.rows(path)] for reader in knowing_vectors()}
    assert len({tuple(sorted(one)) for one in found.values()}) == 1, found
    return sorted(next(iter(found.values())))


def marked(lake: Path) -> tuple[Replica, Path]:
    """Ten rows in a file, of which the fourth is deleted."""
    replica = Replica(DeltaDestination(str(lake), "shop", OPTIONS), pipeline="shop").create(*map(line, range(10)))
    replica.apply(replica.wire().delete(line(4)).take())
    return replica, lake / replica.schema.table.schema / replica.schema.table.name


def rewrite_log(path: Path, change: Callable[[Action], None]) -> None:
    for file in (path / "_delta_log").glob("*.json"):
        actions = [json.loads(one) for one in file.read_text().splitlines()]
        for action in actions:
            if "add" in action:
                change(action["add"])
        file.write_text("\n".join(map(json.dumps, actions)))


def reopened(replica: Replica, lake: Path, **options: Any) -> None:
    replica.destination.shutdown()
    replica.destination = DeltaDestination(str(lake), "shop", {**OPTIONS, **options})


def test_a_vector_by_its_address_is_read(tmp_path: Path) -> None:
    replica, path = marked(tmp_path)

    def address(add: Action) -> None:
        if vector := add.get("deletionVector"):
            file = path / vector_file(vector["pathOrInlineDv"])
            vector |= {"storageType": "p", "pathOrInlineDv": file.as_uri()}

    rewrite_log(path, address)
    reopened(replica, tmp_path)
    replica.apply(replica.wire().delete(line(5)).take())
    assert ids(path) == [0, 1, 2, 3, 6, 7, 8, 9]


def test_a_vector_that_is_none_stops_its_table_alone(tmp_path: Path) -> None:
    replica, path = marked(tmp_path)

    def garble(add: Action) -> None:
        if vector := add.get("deletionVector"):
            vector["pathOrInlineDv"] = '"' * 20

    rewrite_log(path, garble)
    reopened(replica, tmp_path)
    with raises(ErrorKind.DAMAGED, replica.schema.table, match="deletion vector"):
        replica.apply(replica.wire().delete(line(5)).take())


@pytest.mark.parametrize("stats", [None, "", "{}", '{"nullCount":{"tightBounds":0}}', "null", "garbage"])
def test_a_file_of_which_the_log_does_not_tell_how_many_rows_it_has(tmp_path: Path, stats: str | None) -> None:
    """Polars refuses one with a deletion vector where that is not said."""
    replica = Replica(DeltaDestination(str(tmp_path), "shop", OPTIONS), pipeline="shop").create(*map(line, range(10)))
    path = tmp_path / replica.schema.table.schema / replica.schema.table.name
    rewrite_log(path, lambda add: add.pop("stats") if stats is None else add.update(stats=stats))
    reopened(replica, tmp_path)
    replica.apply(replica.wire().delete(line(4)).take())
    assert ids(path) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    last = path / "_delta_log" / f"{DeltaTable(path).version():020}.json"
    (add,) = [json.loads(one)["add"] for one in last.read_text().splitlines() if '"add"' in one]
    told = json.loads(add["stats"])
    assert (told["numRecords"], told["tightBounds"]) == (10, False)
    for number in (0, 1, 2, 3, 5, 6, 7, 8, 9):
        replica.apply(replica.wire().delete(line(number)).take())
    assert ids(path) == []
    assert len(DeltaTable(path).file_uris()) == 0


def test_names_are_not_what_vectors_are_told_apart_by(tmp_path: Path) -> None:
    """Two vectors of one file lie one behind the other."""
    place = TableFolder(str(tmp_path))
    first, second = write_marks(place, {"a": marks_of(1), "b": marks_of(2, 3)}).values()
    assert first.path_or_inline == second.path_or_inline
    assert (read_marks(place, first), read_marks(place, second)) == (marks_of(1), marks_of(2, 3))
    assert uuid.UUID(vector_path(place, first).removeprefix("deletion_vector_").removesuffix(".bin"))
