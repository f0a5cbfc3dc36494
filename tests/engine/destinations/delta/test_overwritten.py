"""A commit that was made and is not there any more: whoever made it finds that, and ends the table alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.testing.builders import Replica
from airflow_provider_pgetl.testing.conformance import ANN, BOB
from tests.engine.destinations.delta.landing import LANDS, MergedAtOnce
from tests.engine.destinations.delta.reading import CAT, DAN, place, rows_of
from tests.raising import raises


def optimize(log: Path, version: int) -> None:
    """As a Spark that keeps its log in S3 by `S3SingleDriverLogStore`: nothing refuses it."""
    said = {"operation": "OPTIMIZE", "timestamp": 1, "operationParameters": {}}
    (log / f"{version:020}.json").write_text(json.dumps({"commitInfo": said}))


def overwrite(at: Path) -> None:
    optimize(at / "_delta_log", DeltaTable(at).version())


def overwrite_and_go_on(at: Path) -> None:
    version = DeltaTable(at).version()
    optimize(at / "_delta_log", version)
    optimize(at / "_delta_log", version + 1)


@pytest.mark.parametrize("meddle", [overwrite, overwrite_and_go_on])
@pytest.mark.parametrize("open_", [DeltaDestination, MergedAtOnce], ids=["worker", "landing"])
def test_a_commit_of_ours_that_another_has_overwritten(
    tmp_path: Path, open_: Callable[[str, str], DeltaDestination], meddle: Callable[[Path], None]
) -> None:
    destination: Any = open_(str(tmp_path), "shop")
    replica, other = (Replica(destination, pipeline="shop").create(ANN) for _ in range(2))
    at = place(tmp_path, replica)
    for row in (BOB, CAT):
        replica.apply(replica.wire().insert(row).take())
    meddle(at)
    words = "another version [0-9]+ in the place of the one that pgetl has written"
    for _ in range(2):
        with raises(ErrorKind.SCHEMA, replica.schema.table, match=words) as refused:
            replica.apply(replica.wire().insert(DAN).take())
        assert "`pgetl reset FILE TABLE`" in refused.value.remedy
    other.apply(other.wire().insert(CAT).take())

    replica.generation = 2
    replica.copy(2, BOB)
    replica.apply(replica.wire().insert(CAT).take())
    assert sorted(row[:2] for row in rows_of(at)) == [(2, "Bob"), (3, "Cat")]


@pytest.mark.parametrize("options", [{}, LANDS])
def test_another_table_in_its_place_is_no_such_thing(tmp_path: Path, options: dict[str, str]) -> None:
    """With more versions, or with fewer: one that the pipeline itself has copied since, in another process."""
    replica = Replica(DeltaDestination(str(tmp_path), "shop", options), pipeline="shop").create(ANN)
    for row in (BOB, CAT):
        replica.apply(replica.wire().insert(row).take())
    for attempt in (2, 3):
        shutil.rmtree(place(tmp_path, replica))
        again: Any = DeltaDestination(str(tmp_path), "shop", options)
        copied = replace(replica, destination=again, generation=attempt)
        copied.copy(attempt, ANN)
        for number in range(5 * (attempt - 2)):
            copied.apply(copied.wire().insert((b"%d" % (10 + number), None, None)).take())
        replica.generation, replica.position = attempt, copied.position
        replica.apply(replica.wire().insert(DAN).take())
