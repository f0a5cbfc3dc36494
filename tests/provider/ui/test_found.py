"""What is found of a pipeline when it is asked for, and when it cannot be read."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from airflow_provider_pgetl.engine.model.results import RESOLUTIONS
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.monitoring.surveys import PipelineSurvey
from airflow_provider_pgetl.engine.state.store import open_store
from airflow_provider_pgetl.ui.actions import offered
from airflow_provider_pgetl.ui.declared import KnownPipeline
from airflow_provider_pgetl.ui.found import Found, Orphan, find, orphans_of
from airflow_provider_pgetl.ui.page import View, overview_page, pipeline_page
from tests.conftest import PostgresServers

ORDERS = TableName("public", "orders")
SHOP = KnownPipeline("shop", "the_dag", "shop_db")
NOWHERE = "postgresql://me:hush@127.0.0.1:1/d"


@pytest.mark.servers
def test_in_an_outage_what_was_read_last_is_shown_with_its_age(
    postgres_servers: PostgresServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgres_servers[16].create_database("found")
    with closing(open_store(database.uri, "shop")) as store:
        store.register(ORDERS, 2, None)
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", database.uri)
    assert find(SHOP, RESOLUTIONS[0]).trouble is None
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", NOWHERE)
    found = find(SHOP, RESOLUTIONS[0])
    assert found.state == "unknown"
    assert found.trouble is not None
    assert [one.table for one in found.tables] == [ORDERS]
    assert 0 < found.age < 60
    assert offered(found, frozenset({"the_dag"})) == [], "of what is not known, nothing is decided"
    for page in (overview_page([found], ""), pipeline_page([found], "", View())):
        assert "What follows was read" in page
        assert "hush" not in page
    never_read = find(replace(SHOP, dag_id="another_dag"), RESOLUTIONS[0])
    assert (never_read.survey, never_read.trouble is None) == (None, False)
    assert "What follows was read" not in overview_page([never_read], "")


def test_a_pipeline_that_no_dag_declares_is_told_to_who_may_edit_the_dag_beside_it() -> None:
    survey = PipelineSurvey(True, None, (), instances={"shop": "a", "gone": "b", "elsewhere": "c"})
    found = [Found("shop", "the_dag", survey), Found("new", "new_dag")]
    declared = {"shop", "elsewhere"}
    assert orphans_of(found, declared, {"the_dag"}) == [Orphan("gone", "the_dag")]
    assert orphans_of(found, declared, {"new_dag"}) == []
    page = overview_page(found, "", orphans_of(found, declared, {"the_dag"}))
    assert "No DAG declares the pipeline gone, whose state is kept beside that of the DAG the_dag." in page
