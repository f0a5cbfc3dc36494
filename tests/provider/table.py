"""A table of a prepared pipeline, moved by hand on a real store; nothing is streamed."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl import Postgres, ReplicationDag
from airflow_provider_pgetl.engine.model.phases import (
    CameNear,
    CaughtUp,
    CopyFinished,
    CopyStarted,
    Event,
    Failed,
    RetryPolicy,
    RolledBack,
    TakenOver,
    TargetChosen,
    phase_name,
)
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.source.slots import copy_slot
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.provider.running import executed, pipeline_of

ORDERS = TableName("public", "orders")
HERE = Boundary.parse("0/1000")


class Table:
    """The table `orders` of a prepared pipeline, moved by hand."""

    def __init__(self, databases: Databases) -> None:
        self.dag = ReplicationDag(
            "shop", source_conn_id="shop_db", tables=["public.orders"], destination=Postgres("replica_db")
        )
        self.pipeline = pipeline_of(self.dag.replication)
        self.pipeline.prepare()
        self._source = databases.source

    @property
    def phase(self) -> str:
        return phase_name(self.pipeline.state(ORDERS).phase)

    @property
    def generation(self) -> int:
        return self.pipeline.state(ORDERS).generation

    def copy(self) -> None:
        attempt = self.pipeline.store.start_attempt(60.0)
        slot = copy_slot("shop", self.pipeline.store.pipeline().instance, attempt)
        self._source.execute("select 1 from pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        self.tell(CopyStarted(self.generation, attempt), CopyFinished(self.generation, attempt, HERE))
        self.pipeline.store.end_attempt(attempt)

    def hand_over(self) -> None:
        g = self.generation
        self.tell(CameNear(g, HERE), TargetChosen(g, HERE), CaughtUp(g, HERE, HERE), TakenOver(g, HERE))

    def fail(self, kind: str, at: float | None = None) -> None:
        policy = RetryPolicy(kind, at)  # type: ignore[arg-type] # named as in the declaration of the type
        self.tell(Failed(self.generation, "A value does not fit.", "Widen the column.", policy))

    def recover(self) -> None:
        """As the streaming worker does when the time of a retry has come."""
        self.tell(RolledBack(self.generation))

    def tell(self, *events: Event) -> None:
        for event in events:
            assert isinstance(self.pipeline.store.apply({ORDERS: event}), dict)

    def run(self, station: str, call: str = "execute", **arguments: Any) -> BaseException | None:
        """What the task's execution came to: None is success, `TaskDeferred` waiting."""
        outcome = executed(self.dag, f"public__orders.{station}", call, **arguments)
        return outcome if isinstance(outcome, BaseException) else None
