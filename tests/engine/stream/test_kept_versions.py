"""Old versions of a schema are deleted, but for those that tell which names the destination's columns have."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.stream import schema_versions
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.in_process import InProcess

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("source_server", [16], indirect=True)]


def test_a_dropped_name_is_not_given_to_another_column_however_long_ago(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_versions, "KEPT", 2)
    here = InProcess(databases)
    for name, value in here.environment.items():
        monkeypatch.setenv(name, value)
    here.source("create table t (id int primary key, note text)", "insert into t values (1, 'old')")
    here.catch_up()
    for step, change in enumerate(["drop note", *(f"add c{n} int" for n in range(5))], 2):
        here.source(f"alter table t {change}", f"insert into t (id) values ({step})")
        here.catch_up()
    with here.opened() as pipeline:
        kept = pipeline.schema_versions(TableName("public", "t"))
    assert len(kept) <= 4, "of seven: two, the one that is in force, and the last with note"
    here.source("alter table t add note text", "insert into t (id) values (9)")
    with here.opened() as pipeline:
        outcome = pipeline.run(until_caught_up=True, stop=threading.Event())
    (errored,) = outcome.errored.values()
    assert "note" in errored.reason
