"""The pool of copies of a run: what it cannot get over ends it, and whoever waits for its copies hears of it."""

from __future__ import annotations

import threading

from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyResult, Running
from airflow_provider_pgetl.engine.config.spec import DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.copy.admission import CopyPool
from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.engine.model.reports import nobody
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.prepare.preparation import Prepared
from airflow_provider_pgetl.engine.state.memory import MemoryStore
from tests.raising import raises

ORDERS = TableName("public", "orders")
SPEC = PipelineSpec("shop", (TableSpec("public.orders"),), SourceSpec("env:SOURCE"), DestinationSpec("memory"))


def launch(job: CopyJob) -> Running[CopyResult]:
    raise ZeroDivisionError(f"{len(job.tables)} table")


def test_a_defect_ends_the_pool_and_is_told_to_whoever_waits_for_it() -> None:
    store = MemoryStore("shop")
    store.register(ORDERS, 1, 2)
    context = PipelineContext(SPEC, store, nobody, "", None, {})
    stop = threading.Event()
    pool = CopyPool(context, Prepared({ORDERS: ORDERS}, {ORDERS: 8192}), launch, stop)
    pool.start()
    assert stop.wait(60)
    pool.join()
    with raises(ErrorKind.INTERNAL, match="The pool of copies met ZeroDivisionError: 1 table"):
        pool.busy()
