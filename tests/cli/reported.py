"""Reports as the engine would send them, in few words."""

from __future__ import annotations

from airflow_provider_pgetl.engine.model.phases import Phase, TableState
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import CopyProgressed, PhaseReached, StreamProgressed
from airflow_provider_pgetl.engine.model.tables import TableName

ORDERS = TableName("public", "orders")
ITEMS = TableName("public", "items")
HOSTILE = TableName("public", "[red]\n\x1b[2J")
MIB = 1 << 20


def reached(phase: Phase, table: TableName = ORDERS, attempt: int | None = 1) -> PhaseReached:
    return PhaseReached(table, TableState(phase, 1, attempt))


def copied(done: int, total: int = 100 * MIB, table: TableName = ORDERS, attempt: int = 1) -> CopyProgressed:
    return CopyProgressed(table, attempt, done, total, rows=done // 100)


def streamed(changes: int, stream: str = "apply", lag: float = 0.3, missed: int = 0) -> StreamProgressed:
    return StreamProgressed(stream, Boundary(0x2000), Boundary(0x1000), 0x1000, lag, changes, batches=1, missed=missed)
