"""What the replication page says."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_pgetl.engine.model.errors import Finding
from airflow_provider_pgetl.engine.model.phases import DataSync, Errored, Ready, TableState
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.results import SlotStatus
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.monitoring.snapshots import PipelineSurvey, SaidLag, SurveyedTable
from airflow_provider_pgetl.engine.monitoring.sources import SlotSurvey
from airflow_provider_pgetl.ui.page import Found, lag_text, overview_page, pipeline_page

ORDERS, NOTES, ODD = TableName("public", "orders"), TableName("public", "notes"), TableName("public", '<b>"&')
SURVEY = PipelineSurvey(
    True,
    SaidLag(2048, 1.25, 3.0),
    (
        SurveyedTable(NOTES, TableState(DataSync()), 0.0),
        SurveyedTable(ODD, TableState(Errored("no <such> column", "Add it.")), 0.0),
        SurveyedTable(ORDERS, TableState(Ready()), 0.0, TableName("sales", "orders"), 12345),
    ),
)
SHOP = Found("shop", "the_dag", SURVEY)


def row(page: str, table: str) -> str:
    return next(part for part in page.split("<tr")[1:] if f">{table}</td>" in part)


def test_a_table_s_line_says_phase_replica_rows_and_lag() -> None:
    page = pipeline_page([SHOP], "")
    orders = row(page, "public.orders")
    for said in ("Ready", "sales.orders", "12,345", "2.0 KiB, 1.2 s"):
        assert said in orders
    assert "KiB" not in row(page, "public.notes"), "a table that is copied does not follow the stream"


def test_an_errored_table_says_why_and_what_to_do_and_nothing_is_taken_for_markup() -> None:
    page = pipeline_page([SHOP], "")
    assert "no &lt;such&gt; column Add it. Then clear the table&#39;s task that has failed." in page
    assert "<b>" not in page
    assert "<script" not in page


def test_the_overview_counts_phases_and_leads_on() -> None:
    page = overview_page([SHOP], "/airflow")
    assert "1 DataSync, 1 Errored, 1 Ready" in page
    assert 'href="pipelines/shop"' in page
    assert 'href="/airflow/dags/the_dag"' in page
    assert "streaming" in page


def test_a_pipeline_without_a_survey_says_why() -> None:
    page = overview_page([Found("new", "d"), Found("far", "d", trouble="Nobody answers at <there>.")], "")
    assert "has not run yet" in page
    assert "Nobody answers at &lt;there&gt;." in page
    assert "Nobody answers" in pipeline_page([Found("far", "d", trouble="Nobody answers.")], "")


def test_slots_say_what_they_retain_and_which_are_left_over() -> None:
    used = SlotStatus("pgetl_shop_abc234_apply", "apply", True, Boundary(512), 2048, "reserved")
    lost = SlotStatus("pgetl_shop_abc234_c1", "c1", False, None, None, "lost", "wal_removed")
    finding = Finding("The slot <old> retains 1 GiB.", "SELECT pg_drop_replication_slot('old');", "warning")
    page = pipeline_page([replace(SHOP, slots=SlotSurvey((used, lost), (finding,)))], "")
    assert "2.0 KiB" in row(page, used.name)
    assert "yes" in row(page, used.name)
    assert "wal_removed" in row(page, lost.name)
    assert "The slot &lt;old&gt; retains 1 GiB. SELECT pg_drop_replication_slot(" in page
    page = pipeline_page([replace(SHOP, slots_trouble="Nobody answers.")], "")
    assert "Replication slots are not known: Nobody answers." in page


def test_where_nothing_may_be_seen_that_is_said() -> None:
    assert "No DAG that you may read" in overview_page([], "")


def test_a_lag_of_long_ago_says_so() -> None:
    assert lag_text(SaidLag(0, 0.1, 3600.0)) == "0 B, 0.1 s (1 h 00 min ago)"
    assert lag_text(None) == ""
