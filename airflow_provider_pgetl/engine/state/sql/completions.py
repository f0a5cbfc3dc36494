"""Which task of which run completed when; kept for a while."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert

from airflow_provider_pgetl.engine.state.tables import completions

_KEPT = text("clock_timestamp() - interval '90 days'")


def record(connection: Connection, pipeline: int, run: str, tasks: Collection[str]) -> None:
    """Also forgets what is old, so that the book does not grow for ever."""
    if not tasks:
        return
    connection.execute(delete(completions).where(completions.c.pipeline == pipeline, completions.c.at < _KEPT))
    now = func.clock_timestamp()
    added = insert(completions).values([{"pipeline": pipeline, "run": run, "task": task, "at": now} for task in tasks])
    connection.execute(added.on_conflict_do_update(index_elements=["pipeline", "run", "task"], set_={"at": now}))


def read(connection: Connection, pipeline: int, run: str) -> Mapping[str, float]:
    query = select(completions.c.task, completions.c.at).where(
        completions.c.pipeline == pipeline, completions.c.run == run
    )
    return {task: at.timestamp() for task, at in connection.execute(query)}
