"""A batch of more tables than are written at once, and the logs that stay loaded after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.changes.batch import EventBatch
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta import destination as module
from airflow_provider_pgetl.engine.model.errors import Fenced
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing.builders import Replica, sample_schema
from tests.engine.destinations.delta.reading import rows_of


@pytest.mark.parametrize("at_once", [2, 6], ids=lambda tables: f"{tables} at once")
def test_a_batch_of_many_tables_reaches_each_and_keeps_few_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(module, "_TABLES_AT_ONCE", at_once)
    monkeypatch.setattr(module, "_LOGS_KEPT", 3)
    destination, schema = DeltaDestination(str(tmp_path), "shop"), sample_schema()
    tables = [
        Replica(destination, replace(schema, table=TableName("public", f"t{number}"), relation=number), "shop")
        for number in range(7)
    ]
    for number, table in enumerate(tables):
        table.create((b"1", b"Ann %d" % number, None))
    steps = [table.wire().update((b"1", b"Bob %d" % at, None)).take() for at, table in enumerate(tables[:6])]
    moves = {name: move for table in tables for name, move in table.batch().moves.items()}

    destination.write_events(EventBatch("shop", 1, moves, steps))

    found = destination.positions("shop")
    assert {name: one.position for name, one in found.items()} == dict.fromkeys(moves, Boundary(20))
    names = [row[1] for number in range(7) for row in rows_of(tmp_path / "public" / f"t{number}")]
    assert names == [*(f"Bob {number}" for number in range(6)), "Ann 6"]
    assert len(destination._logs) == 3


def test_positions_are_read_without_loading_tables_whoever_committed_last(tmp_path: Path) -> None:
    """The newest commit says all that is recorded, if it is ours; else the log is loaded."""
    destination = DeltaDestination(str(tmp_path), "shop")
    replica = Replica(destination, pipeline="shop").create((b"1", b"Ann", None))
    for number in range(25):  # more than lie between two checkpoints
        replica.apply(replica.wire().update((b"1", b"Bob %d" % number, None)).take())
        assert DeltaDestination(str(tmp_path), "shop").positions("shop")[replica.schema.table].position == (
            replica.position
        )
    place = tmp_path / replica.schema.table.schema / replica.schema.table.name
    DeltaTable(str(place)).alter.set_table_properties({"owner": "somebody else"}, raise_if_not_exists=False)
    fresh = DeltaDestination(str(tmp_path), "shop")
    assert fresh.positions("shop")[replica.schema.table].position == replica.position


def test_what_leads_to_the_newest_commit_is_a_hint_alone(tmp_path: Path) -> None:
    destination = DeltaDestination(str(tmp_path), "shop")
    replica = Replica(destination, pipeline="shop").create((b"1", b"Ann", None))
    for number in range(25):
        replica.apply(replica.wire().update((b"1", b"Bob %d" % number, None)).take())
    table = replica.schema.table
    hint = tmp_path / table.schema / table.name / "_delta_log" / "_last_checkpoint"
    for content in ("", '{"version":', "[]", "{}", '{"version": "none"}', '{"version": 1000}'):
        hint.write_text(content)
        found = DeltaDestination(str(tmp_path), "shop").positions("shop")
        assert found[table].position == replica.position, content


def test_a_log_that_others_have_gone_on_with_is_read_anew(tmp_path: Path) -> None:
    """A successor's claim, and a commit of somebody else on top, which says nothing of it."""
    straggler = Replica(DeltaDestination(str(tmp_path), "shop"), pipeline="shop").create((b"1", b"Ann", None))
    straggler.apply(straggler.wire().update((b"1", b"Bob", None)).take())
    DeltaDestination(str(tmp_path), "shop").claim("shop", 2)
    place = tmp_path / straggler.schema.table.schema / straggler.schema.table.name
    DeltaTable(str(place)).alter.set_table_properties({"owner": "somebody else"}, raise_if_not_exists=False)
    with pytest.raises(Fenced):
        straggler.apply(straggler.wire().update((b"1", b"Eve", None)).take())
