"""What the replication page says."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from http import HTTPStatus
from importlib import metadata

import pytest
from fastapi import HTTPException, Request

from airflow_provider_pgetl.engine.model.errors import Finding
from airflow_provider_pgetl.engine.model.phases import DataSync, Errored, Init, Ready, TableState
from airflow_provider_pgetl.engine.model.positions import Boundary, RowCounts
from airflow_provider_pgetl.engine.model.results import Measurement, SlotStatus
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.model.verification import TableVerified
from airflow_provider_pgetl.engine.monitoring.snapshots import SaidLag
from airflow_provider_pgetl.engine.monitoring.sources import SlotSurvey
from airflow_provider_pgetl.engine.monitoring.surveys import PhaseEntry, PipelineSurvey, SurveyedTable, TableHistory
from airflow_provider_pgetl.ui.declared import KnownPipeline
from airflow_provider_pgetl.ui.found import Found, View, lag_text
from airflow_provider_pgetl.ui.page import overview_page, pipeline_page, table, table_page

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
    return next(part for part in page.split("<tr")[1:] if f">{table}<" in part)


def test_a_table_s_line_says_phase_replica_rows_and_lag() -> None:
    page = pipeline_page([SHOP], "", View())
    orders = row(page, "public.orders")
    for said in ("Ready", "sales.orders", "12,345", "2.0 KiB, 1.2 s"):
        assert said in orders
    assert "KiB" not in row(page, "public.notes"), "a table that is copied does not follow the stream"


def test_an_errored_table_says_why_and_what_to_do_and_nothing_is_taken_for_markup() -> None:
    page = pipeline_page([SHOP], "", View())
    assert "no &lt;such&gt; column Add it. Then clear the table&#39;s task that has failed." in page
    assert "<b>" not in page
    assert "<script" not in page


def test_a_table_s_line_says_what_its_last_verification_found() -> None:
    orders = SURVEY.tables[2]
    equal = TableVerified(ORDERS, "equal", Boundary(5), 100.0, rows=7)
    for verified, said in (
        (None, "never"),
        (equal, "equal, 2 min 00 s ago"),
        (replace(equal, verdict="different"), "different, 2 min 00 s ago"),
    ):
        survey = replace(SURVEY, tables=(replace(orders, verified=verified),), now=220.0)
        line = row(pipeline_page([replace(SHOP, survey=survey)], "", View()), "public.orders")
        assert said in line
        assert verified is None or f'class="short {verified.verdict}"' in line


def test_a_table_s_page_lists_its_verifications() -> None:
    found = TableVerified(ORDERS, "different", Boundary(5), 100.0, rows=7000, missing=3, share=0.05)
    page = table_page(SHOP, SURVEY.tables[2], TableHistory(verifications=(found,)), "")
    for said in ("different", "(of 5% of the keys)", "7,000", ">3<", "0/5"):
        assert said in page
    assert "Never. VerifyOperator" in table_page(SHOP, SURVEY.tables[2], TableHistory(), "")


def test_the_overview_counts_phases_and_leads_on() -> None:
    page = overview_page([SHOP], "/airflow")
    for said in ("1 DataSync", "1 Errored", "1 Ready"):
        assert said in page
    assert 'href="pipelines/shop"' in page
    assert 'href="/airflow/dags/the_dag"' in page
    assert "streaming" in page


def test_a_pipeline_without_a_survey_says_why() -> None:
    page = overview_page([Found("new", "d"), Found("far", "d", trouble="Nobody answers at <there>.")], "")
    assert "has not run yet" in page
    assert "Nobody answers at &lt;there&gt;." in page
    assert "Nobody answers" in pipeline_page([Found("far", "d", trouble="Nobody answers.")], "", View())


def test_slots_say_what_they_retain_and_which_are_left_over() -> None:
    used = SlotStatus("pgetl_shop_abc234_apply", "apply", True, Boundary(512), 2048, "reserved")
    lost = SlotStatus("pgetl_shop_abc234_c1", "c1", False, None, None, "lost", "wal_removed")
    finding = Finding("The slot <old> retains 1 GiB.", "SELECT pg_drop_replication_slot('old');", "warning")
    page = pipeline_page([replace(SHOP, slots=SlotSurvey((used, lost), (finding,)))], "", View())
    assert "2.0 KiB" in row(page, used.name)
    assert "yes" in row(page, used.name)
    assert "wal_removed" in row(page, lost.name)
    assert "The slot &lt;old&gt; retains 1 GiB. SELECT pg_drop_replication_slot(" in page
    page = pipeline_page([replace(SHOP, slots_trouble="Nobody answers.")], "", View())
    assert "Replication slots are not known: Nobody answers." in page


def test_where_nothing_may_be_seen_that_is_said() -> None:
    assert "No DAG that you may read" in overview_page([], "")


def test_a_lag_of_long_ago_says_so() -> None:
    assert lag_text(SaidLag(0, 0.1, 3600.0)) == "0 B, 0.1 s (1 h 00 min ago)"
    assert lag_text(None) == ""


def test_errored_tables_come_first_and_those_that_are_ready_last() -> None:
    assert [each.table for each in SHOP.shown(View())] == [ODD, NOTES, ORDERS]


def test_tables_are_chosen_by_phase_and_by_a_part_of_their_name() -> None:
    assert [each.table for each in SHOP.shown(View(phase="Ready"))] == [ORDERS]
    assert [each.table for each in SHOP.shown(View(search="ORD"))] == [ORDERS]
    assert SHOP.shown(View(phase="Ready", search="notes")) == []
    assert "No table is like that." in pipeline_page([SHOP], "", View(search="nothing"))


def test_a_pipeline_that_does_not_stream_is_not_shown_as_one_that_does() -> None:
    page = overview_page([Found("shop", "d", replace(SURVEY, streamed=False))], "")
    assert 'class="state not-streaming"' in page
    assert "streaming" not in page.replace("not-streaming", "").replace("not streaming", "").partition("</style>")[2]


def test_the_overview_begins_with_what_is_wrong() -> None:
    ready = replace(SURVEY, tables=SURVEY.tables[2:])
    found = [Found("a", "d", ready), Found("b", "d", replace(ready, streamed=False)), Found("c", "d", SURVEY)]
    page = overview_page(found, "")
    assert sorted("abc", key=lambda name: page.index(f"pipelines/{name}")) == ["c", "b", "a"]


def test_the_history_is_plotted_over_the_span_that_is_asked_for() -> None:
    measured = tuple(Measurement(lag_seconds=n, changes=100 * n, at=3600.0 + 10 * n) for n in range(1, 50))
    found = replace(SHOP, survey=replace(SURVEY, measured=measured, now=4200.0))
    page = pipeline_page([found], "", View("day"))
    assert 'aria-label="Lag, at most 49 s"' in page
    assert 'aria-label="Changes, at most 490/s"' in page
    assert 'class="chosen" href="?span=day"' in page
    assert "lag in the last hour, at most 49 s" in overview_page([found], "")
    assert "Nothing has been measured in this time." in pipeline_page([SHOP], "", View())


def test_a_table_whose_state_cannot_be_read_is_not_said_to_be_missing() -> None:
    with pytest.raises(HTTPException) as caught:
        table("shop", "public", "orders", Request({"type": "http"}), [KnownPipeline("shop", "d", None)], frozenset())
    assert caught.value.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert "The connection of its state is a template" in caught.value.detail


def test_a_table_has_a_page_with_its_past() -> None:
    history = TableHistory((PhaseEntry(Init(), 1, None, 0.0, 4.0), PhaseEntry(DataSync(), 1, 7, 4.0, 60.0)))
    orders = replace(SURVEY.tables[2], counts=RowCounts(1200, 34, 5, 1))
    page = table_page(SHOP, orders, history, "/airflow", "/dags/the_dag/tasks/group/public__orders")
    for said in ("sales.orders", "12,345", "1,200", "1970-01-01 00:00:04", "1 min 00 s"):
        assert said in page
    assert page.index("DataSync</td>") < page.index("Init</td>"), "the latest first"
    assert 'href="/airflow/dags/the_dag/tasks/group/public__orders"' in page
    errored = table_page(SHOP, SURVEY.tables[1], TableHistory(), "")
    assert "no &lt;such&gt; column Add it." in errored
    assert "tasks and logs" not in errored


# -- what every process of Airflow imports for the replication page, and what only the api-server does -----------------


PROGRAM = """
import sys
import airflow.plugins_manager
before = set(sys.modules)
from airflow_provider_pgetl.ui.plugin import PgetlPlugin
PgetlPlugin.validate()
drivers = {"psycopg", "pyarrow", "pyspark", "numpy", "fastapi", "jinja2", "sqlalchemy", "alembic"}
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before} & drivers))
"""


def test_it_costs_no_process_an_import_of_anything_large() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1].strip() == ""


def test_the_installed_package_offers_it() -> None:
    points = metadata.distribution("airflow-provider-pgetl").entry_points
    [point] = points.select(group="airflow.plugins")
    plugin = point.load()
    assert plugin.name == "pgetl"
    assert [view["href"] for view in plugin.external_views] == ["pgetl/"]
