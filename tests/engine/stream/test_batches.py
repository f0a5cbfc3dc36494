"""Whoever watches a long write sees how much of its batch was taken in."""

from __future__ import annotations

import numpy as np

from airflow_provider_pgetl.engine.model.positions import CommitLsn
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.stream.batches import GatheredSteps, Route
from airflow_provider_pgetl.engine.wal.pgoutput import Relation, RelationColumn
from airflow_provider_pgetl.engine.wal.spool import Sealed, TruncateStep
from airflow_provider_pgetl.testing.builders import Wire, sample_schema

SCHEMA = sample_schema()
RELATION = Relation(
    SCHEMA.relation,
    SCHEMA.table,
    "default",
    tuple(RelationColumn(one.name, one.type.oid, -1, one.name in SCHEMA.key) for one in SCHEMA.columns),
)


def sealed(route: Route, count: int) -> Sealed[Route]:
    wire = Wire(SCHEMA)
    for number in range(count):
        wire.insert((str(number).encode(), b"a", None))
    rows = wire.take()
    lengths = np.diff(np.append(rows.starts, len(rows.buffer)))
    return Sealed(route, RELATION, rows.buffer.tobytes(), lengths, np.array([[0, 1, 0]]), rows.ordinals)


def test_rows_are_counted_as_they_are_taken_and_anew_when_it_is_tried_again() -> None:
    ours, other = (Route(TableName("public", name), SCHEMA, SCHEMA.relation) for name in ("ours", "other"))
    gathered = [
        sealed(ours, 3),
        sealed(other, 100),
        TruncateStep(ours, RELATION, CommitLsn(1), 0, 4),
        sealed(ours, 5),
    ]
    steps = GatheredSteps(gathered, {ours.table: SCHEMA})
    for _ in range(2):
        assert [steps.rows for _ in steps] == [0, 3, 3]
        assert steps.rows == 8
