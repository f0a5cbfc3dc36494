"""What the page offers, and says before it is done."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fastapi import HTTPException, Request

from airflow_provider_pgetl.engine.model.phases import Ready, TableState
from airflow_provider_pgetl.engine.model.results import SlotStatus
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.monitoring.sources import SlotSurvey
from airflow_provider_pgetl.engine.monitoring.surveys import PipelineSurvey, SurveyedTable
from airflow_provider_pgetl.ui.actions import Action, consequences, expect_editable, expect_same_site, offered
from airflow_provider_pgetl.ui.declared import KnownPipeline
from airflow_provider_pgetl.ui.found import Found

ORDERS = TableName("public", "orders")
SURVEY = PipelineSurvey(True, None, (SurveyedTable(ORDERS, TableState(Ready()), 0.0, ORDERS, 12345),))
SHOP = Found("shop", "the_dag", SURVEY)
EDITABLE = frozenset({"the_dag"})


def test_what_is_offered_depends_on_the_pipeline_and_the_user() -> None:
    assert offered(SHOP, EDITABLE) == [Action.PAUSE]
    assert offered(replace(SHOP, survey=replace(SURVEY, paused=True)), EDITABLE) == [Action.RESUME]
    assert offered(SHOP, frozenset({"another_dag"})) == []
    assert offered(replace(SHOP, survey=None), EDITABLE) == []


def test_a_pause_is_told_with_the_wal_that_is_retained_already() -> None:
    slot = SlotStatus("pgetl_shop_apply", "apply", active=True, confirmed=None, retained_bytes=3 << 20, wal_status=None)
    said = " ".join(consequences(Action.PAUSE, replace(SHOP, slots=SlotSurvey((slot,), ())), None))
    assert "retains its WAL meanwhile (now 3.0 MiB)" in said
    assert "retains its WAL meanwhile:" in " ".join(consequences(Action.PAUSE, SHOP, None))


def test_a_copy_is_told_with_the_rows_that_it_takes() -> None:
    assert "as a whole (12,345 rows at its last copy)" in " ".join(consequences(Action.COPY_AGAIN, SHOP, ORDERS))
    other = TableName("public", "other")
    assert "public.other is copied again, as a whole." in " ".join(consequences(Action.COPY_AGAIN, SHOP, other))


def test_only_the_dag_that_is_meant_and_may_be_edited() -> None:
    one, two = KnownPipeline("shop", "the_dag", "db"), KnownPipeline("shop", "another_dag", "db")
    assert expect_editable([one], EDITABLE, None) == one
    assert expect_editable([one, two], EDITABLE, "the_dag") == one
    for meant, dag_id, code in (([one, two], None, 409), ([one, two], "another_dag", 403), ([two], None, 403)):
        with pytest.raises(HTTPException) as refused:
            expect_editable(meant, EDITABLE, dag_id)
        assert refused.value.status_code == code


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "null"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"origin": "https://airflow.example", "host": "airflow.example"}, True),
        ({"origin": "https://evil.example", "host": "airflow.example"}, False),
        ({"origin": "null", "host": "airflow.example"}, False),
    ],
)
def test_who_sends_a_request_by_a_browser(headers: dict[str, str], passes: bool) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "headers": raw})
    if passes:
        expect_same_site(request)
    else:
        with pytest.raises(HTTPException):
            expect_same_site(request)
