"""Tasks of one's own behind single tables run in every run, and what becomes of other tables is none of theirs."""

from __future__ import annotations

import os
import time
from typing import Any

import psycopg
import pytest
from airflow.sdk import BaseOperator

from airflow_provider_pgetl.failures import PgetlFailure
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from airflow_provider_pgetl.triggers import waiting
from tests.provider.running import MiniAirflow, Ran
from tests.provider.test_whole_run import shop_dag

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.parametrize("source_server", [18], indirect=True)]


class Count(BaseOperator):
    """Counts the rows of a replica when it runs."""

    def __init__(self, *, table: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table

    def execute(self, context: Any) -> int:
        with psycopg.connect(os.environ["AIRFLOW_CONN_REPLICA_DB"]) as connection:
            row = connection.execute(f"select count(*) from {self.table}").fetchone()  # type: ignore[arg-type]
            assert row is not None
            return int(row[0])


def errors(done: dict[str, Ran]) -> dict[str, BaseException]:
    return {task: ran.error for task, ran in done.items() if ran.error}


def test_what_follows_a_table_runs_in_every_run(small_shop: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_LOOK_SECONDS", 0.2)
    source = small_shop.source
    dag = shop_dag()
    for table in ("notes", "orders"):
        dag[f"public.{table}"].ready >> Count(task_id=f"{table}_report", table=table, dag=dag)

    with MiniAirflow(dag) as airflow:
        done = dict(airflow.run_all())
        assert errors(done) == {}
        assert (done["notes_report"].value, done["orders_report"].value) == (0, 2000)
        assert done["public__orders.ready"].value["copied_rows"] == 2000

    source.execute("insert into notes select n, 'note' from generate_series(1, 10) n")
    with MiniAirflow(dag, "run_2") as airflow:
        done = dict(airflow.run_all())
        assert errors(done) == {}
        ready = {"public__notes.ready", "public__orders.ready"}
        assert set(done) == {"prepare", "apply", "notes_report", "orders_report", *ready}
        assert done["notes_report"].value == 10, "the table is waited for, and what was committed before is there"
        said = done["public__notes.ready"].value
        assert said["table"] == "public.notes"
        assert source.execute("select %s::pg_lsn > '0/0'", [said["position"]]) == [(True,)]
        assert said["lag_bytes"] >= 0
        assert airflow.run("public__notes.ready").must_succeed().deferrals == [], "the run has caught up"

    # A table that becomes Errored fails its own tasks, and holds up nobody else.
    small_shop.destination.execute("alter table orders add constraint poison check (total >= 0)")
    source.execute("insert into orders values (9999, 1, -1)")
    source.execute("insert into notes values (11, 'one more')")
    with MiniAirflow(dag, "run_3") as airflow:
        done = dict(airflow.run_all())
        assert done["notes_report"].value == 11
        assert "orders_report" not in done
        assert set(errors(done)) == {"apply", "public__orders.ready"}, "`apply` when the others have arrived"
        assert "public.orders is Errored" in str(done["public__orders.ready"].error)

    # Where `apply` fails before the table has come there, it will not come.
    source.execute("insert into notes values (12, 'and one more')")
    with MiniAirflow(dag, "run_4") as airflow:
        airflow.run("prepare").must_succeed()
        ready_of_notes = airflow.start("public__notes.ready")
        time.sleep(1.0)
        assert not ready_of_notes.done()
        airflow.states["apply"] = "failed"
        error = ready_of_notes.result(30).error
        assert isinstance(error, PgetlFailure)
        assert "`apply` has ended before public.notes had caught up. Clear it, and then this task." in str(error)
