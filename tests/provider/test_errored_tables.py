"""A table that becomes Errored while it is streamed: told in the log and to callbacks, counted, and not green."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import BaseNotifier
from airflow.sdk.definitions.deadline import AsyncCallback

from airflow_provider_pgetl import Postgres, ReplicationDag, Streaming, after
from airflow_provider_pgetl.engine.config.validation import Misdeclared
from airflow_provider_pgetl.engine.model.phases import Errored, RetryPolicy, TableState
from airflow_provider_pgetl.engine.model.reports import Noted, PhaseReached
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.errored_tables import ErroredTable, acall_back, call_back, errored_table
from airflow_provider_pgetl.reporting import Minutes
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from airflow_provider_pgetl.triggers import supervisor
from airflow_provider_pgetl.triggers.pgetl import ApplyTrigger
from tests.mailbox import Mailbox
from tests.provider.running import Lines, MiniAirflow, executed

ORDERS = TableName("public", "orders")
POISONED = ErroredTable(ORDERS, 1, 5.0, "A value does not fit.", "Widen the column.", True, None)

WHY_AND_WHAT = "A value does not fit. Widen the column. Then clear the table's `data_sync`, which copies it again."


def shop(until: Any = None, schedule: Any = "@continuous", **streaming: Any) -> ReplicationDag:
    return ReplicationDag(
        "shop",
        source_conn_id="shop_db",
        tables=["public.orders"],
        destination=Postgres("replica_db"),
        until=until,
        schedule=schedule,
        streaming=Streaming(**streaming),
    )


# -- what is declared -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dag", "fail_after"),
    [
        (shop, 0.0),
        (lambda: shop(fail_on_error=True), 0.0),
        (lambda: shop(fail_on_error=after("30min")), 1800.0),
        (lambda: shop(fail_on_error=False), None),
        (lambda: shop(schedule="@daily"), None),
        (lambda: shop(schedule="@daily", fail_on_error=True), 0.0),
        (lambda: shop(until="caught_up", schedule="@hourly", fail_on_error=True), None),
    ],
)
def test_for_how_long_a_table_may_be_errored_before_the_stream_ends(dag: Any, fail_after: float | None) -> None:
    assert deferred(dag()).fail_after == fail_after


def test_only_a_declaration_with_callbacks_interrupts_the_stream_to_tell() -> None:
    assert not deferred(shop()).tells
    assert deferred(shop(on_table_errored=print)).tells
    assert deferred(shop(on_table_errored=[print, print])).tells


def test_where_all_callbacks_are_for_the_triggerer_the_stream_is_not_interrupted_to_tell() -> None:
    alone, beside = deferred(shop(on_table_errored=THERE)), deferred(shop(on_table_errored=[THERE, print]))
    path = f"{__name__}.tell_there"
    assert (alone.tells, alone.callbacks) == (False, [{"path": path, "kwargs": {"prefix": "there"}}])
    assert (beside.tells, beside.callbacks) == (True, []), "a worker calls both"


def deferred(dag: ReplicationDag) -> ApplyTrigger:
    outcome = executed(dag, "apply")
    assert isinstance(outcome, TaskDeferred)
    assert isinstance(outcome.trigger, ApplyTrigger)
    return outcome.trigger


@pytest.mark.parametrize(
    ("streaming", "message"),
    [
        ({"fail_on_error": "30min"}, r"fail_on_error: it must be True, False or after\(…\)"),
        ({"on_table_errored": ["mail"]}, "on_table_errored: it must be callable"),
        ({"grace": "soon"}, "grace"),
    ],
)
def test_what_cannot_be_is_refused(streaming: Any, message: str) -> None:
    with pytest.raises(Misdeclared, match=message):
        shop(**streaming)


# -- the log ----------------------------------------------------------------------------------------------------------


def test_the_log_has_an_error_with_reason_and_remedy() -> None:
    log = Lines()
    phase = Errored("A value does not fit.", "Widen the column.", RetryPolicy("manual"), "Ready")
    Minutes(log).observe(PhaseReached(ORDERS, TableState(phase)))
    said = f"public.orders is Errored: {WHY_AND_WHAT}"
    assert log.said == [("error", said)]


def test_of_one_that_is_tried_again_by_itself_that_is_said() -> None:
    phase = Errored("Its copy died.", None, RetryPolicy("timed", 100.0), "DataSync")
    found = errored_table(ORDERS, TableState(phase), 5.0)
    assert str(found) == "public.orders is Errored: Its copy died. It is tried again by itself."
    assert found is not None
    assert ErroredTable.from_json(found.as_json()) == found


def test_a_warning_that_is_repeated_is_logged_once_a_minute() -> None:
    log = Lines()
    minutes = Minutes(log)
    for message in ("away", "away", "another", "away"):
        minutes.observe(Noted("warning", message))
    assert log.said == [("warning", "away"), ("warning", "another")]


# -- callbacks --------------------------------------------------------------------------------------------------------


class Notifier(BaseNotifier):
    template_fields = ("text",)

    def __init__(self) -> None:
        super().__init__()
        self.text = "{{ table }}: {{ reason }} {{ remedy }}"

    def notify(self, context: Any) -> None:
        NOTIFIED.append(self.text)


class AsyncNotifier(Notifier):
    notify = BaseNotifier.notify

    async def async_notify(self, context: Any) -> None:
        await asyncio.sleep(0)
        NOTIFIED.append(f"async {self.text}")


NOTIFIED: list[str] = []


@pytest.mark.parametrize(("notifier", "before"), [(Notifier, ""), (AsyncNotifier, "async ")])
def test_a_notifier_is_told(notifier: type[Notifier], before: str) -> None:
    NOTIFIED.clear()
    call_back([notifier()], {}, [POISONED])  # type: ignore[typeddict-item] # a context without content
    assert [f"{before}public.orders: {WHY_AND_WHAT}"] == NOTIFIED


ITEMS = ErroredTable(TableName("public", "items"), 3, 7.0, "Its slot is lost.", None, False, 90.0)


@pytest.mark.parametrize(("notifier", "before"), [(Notifier, ""), (AsyncNotifier, "async ")])
def test_a_notifier_is_told_of_each_table_in_its_own_words(notifier: type[Notifier], before: str) -> None:
    NOTIFIED.clear()
    call_back([notifier()], {}, [POISONED, ITEMS])  # type: ignore[typeddict-item]
    said = [f"public.orders: {WHY_AND_WHAT}", "public.items: Its slot is lost. It is tried again by itself."]
    assert [f"{before}{words}" for words in said] == NOTIFIED


@pytest.fixture
def mailbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mailbox]:
    with Mailbox.opened() as mailbox:
        monkeypatch.setenv("AIRFLOW_CONN_POST", mailbox.connection)
        yield mailbox


def test_airflows_own_notifier_for_mail(mailbox: Mailbox) -> None:
    notifier = SmtpNotifier(
        smtp_conn_id="post",
        to="{{ params.on_call }}",
        subject="{{ table }} is Errored",
        html_content="<p>{{ reason }} {{ remedy }}</p><p>{{ dag.dag_id }}, {{ retry_at }}</p>",
    )
    dag = shop(on_table_errored=notifier, fail_on_error=False)
    context = {"dag": dag, "params": {"on_call": "me@example.com"}}
    call_back(dag.replication.on_table_errored, context, [POISONED, ITEMS])  # type: ignore[arg-type]
    assert [mail["Subject"] for mail in mailbox.received] == ["public.orders is Errored", "public.items is Errored"]
    assert {mail["To"] for mail in mailbox.received} == {"me@example.com"}
    contents = [part.get_content() for mail in mailbox.received for part in mail.walk() if not part.is_multipart()]
    assert [WHY_AND_WHAT in str(contents[0]), "<p>shop, None</p>" in str(contents[0])] == [True, True]
    assert "<p>shop, 90.0</p>" in str(contents[1])


async def tell_there(prefix: str, context: Any) -> None:
    await asyncio.sleep(0)
    NOTIFIED.append(f"{prefix} {context['table']}: {context['reason']}")


THERE = AsyncCallback(tell_there, {"prefix": "there"})


def test_what_is_known_by_its_path_is_called_in_the_triggerer() -> None:
    NOTIFIED.clear()
    stored = [THERE.serialize(), AsyncCallback(FailingNotifier).serialize(), AsyncCallback(AsyncNotifier).serialize()]
    assert not stored[-1]["kwargs"]
    stored[-1]["kwargs"] = None  # as Airflow 3.1 has it
    asyncio.run(acall_back(stored, {}, [POISONED, ITEMS]))
    assert [words.partition(":")[0] for words in NOTIFIED] == [
        "there public.orders", "async public.orders", "there public.items", "async public.items",
    ]  # fmt: skip


class FailingNotifier(Notifier):
    async def async_notify(self, context: Any) -> None:
        raise ZeroDivisionError


def test_a_callback_that_fails_keeps_nobody_from_being_told() -> None:
    told: list[str] = []

    def fail(context: Any) -> None:
        raise ZeroDivisionError

    call_back([fail, lambda context: told.append(context["table"])], {}, [POISONED])  # type: ignore[typeddict-item]
    assert told == ["public.orders"]


# -- the task ---------------------------------------------------------------------------------------------------------


def test_interrupted_to_tell_it_tells_and_streams_on_until_the_same_time() -> None:
    told: list[str] = []
    dag = shop(on_table_errored=lambda context: told.append(context["reason"]), fail_on_error=False)
    event = {"status": "errored", "untold": [POISONED.as_json()], "fatal": [], "rotate_at": 123.0}
    outcome = executed(dag, "apply", "execute_complete", event=event)
    assert told == ["A value does not fit."]
    assert isinstance(outcome, TaskDeferred)
    _, stored = outcome.trigger.serialize()
    assert (stored["rotate_at"], stored["told"]) == (123.0, [["public", "orders", 1]])


def test_interrupted_to_fail_it_says_why_and_what_becomes_of_the_others() -> None:
    event = {"status": "errored", "untold": [], "fatal": [POISONED.as_json()], "rotate_at": 123.0}
    outcome = executed(shop(), "apply", "execute_complete", event=event)
    assert isinstance(outcome, AirflowFailException)
    assert "public.orders is Errored: A value does not fit. Widen the column." in str(outcome)
    assert "The other tables are safe" in str(outcome)


# -- on real servers --------------------------------------------------------------------------------------------------


def print_told(context: Any) -> None:
    NOTIFIED.append(f"{context['table']}: {context['reason']}")


def poison(databases: Databases) -> None:
    databases.destination.execute("alter table orders add constraint poison check (total >= 0)")
    databases.source.execute("insert into orders values (1000000, 1, -1)")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("source_server", [16], indirect=True)
@pytest.mark.parametrize(("callback", "interruptions"), [(print_told, 1), (THERE, 0)])
def test_a_table_that_becomes_errored_is_told_while_the_stream_goes_on_and_then_fails_the_run(
    small_shop: Databases, monkeypatch: pytest.MonkeyPatch, callback: Any, interruptions: int
) -> None:
    monkeypatch.setattr(supervisor, "_LOOK_SECONDS", 0.5)
    NOTIFIED.clear()
    gauges: dict[str, list[int]] = {"shop": []}
    dag = shop(on_table_errored=callback, fail_on_error=after("15s"))
    with (
        MiniAirflow(dag) as airflow,
        patch.object(supervisor, "gauge_errored", lambda pipeline, tables: gauges[pipeline].append(tables)),
    ):
        airflow.run("prepare").must_succeed()
        stream = airflow.start("apply")
        done = airflow.run_all([one for one in dag.task_dict if one not in ("apply", "prepare")])
        assert {one.task: one.error for one in done.values() if one.error} == {}
        poison(small_shop)
        began = time.monotonic()
        ran = stream.result(120)
        assert time.monotonic() - began >= 15
    assert isinstance(ran.error, AirflowFailException)
    assert "public.orders is Errored" in str(ran.error)
    (told,) = NOTIFIED
    assert "public.orders: " in told
    assert len(ran.deferrals) == 1 + interruptions
    assert gauges["shop"][0] == 0
    assert gauges["shop"][-1] == 1

    # The next run streams on, and the table's own task says it.
    with MiniAirflow(dag, "run_2") as airflow:
        airflow.run("prepare").must_succeed()
        stream = airflow.start("apply")
        copy = airflow.run("public__orders.data_sync")
        assert isinstance(copy.error, AirflowFailException)
        assert "public.orders is Errored" in str(copy.error)
        time.sleep(20)
        assert not stream.done(), "the run is not failed for it again"
        airflow.cancel_trigger("apply")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("source_server", [18], indirect=True)
@pytest.mark.parametrize("fails", [True, False])
def test_a_bounded_run_that_finds_all_tables_ready_is_not_green_over_one_that_becomes_errored(
    small_shop: Databases, fails: bool
) -> None:
    told: list[str] = []
    declared = {} if fails else {"fail_on_error": False}
    dag = shop("caught_up", None, on_table_errored=lambda context: told.append(context["table"]), **declared)
    with MiniAirflow(dag) as airflow:
        assert {one.task: one.error for one in airflow.run_all().values() if one.error} == {}
    poison(small_shop)
    with MiniAirflow(dag, "run_2") as airflow:
        done = airflow.run_all()
        assert set(done) == {"prepare", "apply"}
        assert isinstance(done["apply"].error, AirflowFailException) == fails
    assert told == ["public.orders"]


# -- a run that is to catch up, and whose copy fails for good ----------------------------------------------------------


def dag(**options: str) -> ReplicationDag:
    return ReplicationDag(
        "shop", source_conn_id="shop_db", tables=["public.orders"], destination=Postgres("replica_db"),
        until="caught_up", **options,
    )  # fmt: skip


@pytest.mark.parametrize("source_server", [16], indirect=True)
@pytest.mark.spark
def test_it_ends_and_says_why(small_shop: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_LOOK_SECONDS", 1.0)
    with MiniAirflow(dag(spark_submit="--frobnicate x")) as airflow:
        done = airflow.run_all()
    assert set(done) == {"prepare", "apply", "public__orders.init", "public__orders.data_sync"}
    copy, apply = done["public__orders.data_sync"].error, done["apply"].error
    assert isinstance(copy, AirflowFailException)
    assert "spark-submit refuses its arguments: Unrecognized option: --frobnicate." in str(copy)
    assert isinstance(apply, AirflowFailException)
    assert "public.orders must be copied, and no task of this run is left to do it." in str(apply)


@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_without_a_spark_connection_nothing_is_begun(small_shop: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    with MiniAirflow(dag()) as airflow:
        error = airflow.run("prepare").error
    assert isinstance(error, AirflowFailException)
    assert "no Airflow connection 'spark_default'" in str(error)
    assert "spark_conn_id" in str(error)
    assert small_shop.source.execute("select 1 from pg_replication_slots where slot_name like 'pgetl_shop%'") == []
    assert small_shop.source.execute("select to_regclass('pgetl.pipelines')") == [(None,)]
