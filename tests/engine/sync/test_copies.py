"""The pool of copies of a run: what it cannot get over ends it, and whoever waits for its copies hears of it."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_pgetl.engine.config import DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.reports import nobody
from airflow_provider_pgetl.engine.state.memory import MemoryStore
from airflow_provider_pgetl.engine.sync.copies import CopyPool, RunningCopy
from airflow_provider_pgetl.engine.sync.copying.job import CopyJob
from airflow_provider_pgetl.engine.sync.prepare import Prepared
from airflow_provider_pgetl.engine.sync.site import Site
from airflow_provider_pgetl.engine.tables import TableName

ORDERS = TableName("public", "orders")
SPEC = PipelineSpec("shop", (TableSpec("public.orders"),), SourceSpec("env:SOURCE"), DestinationSpec("memory"))


def launch(job: CopyJob) -> RunningCopy:
    raise ZeroDivisionError(f"{len(job.tables)} table")


def test_a_defect_ends_the_pool_and_is_told_to_whoever_waits_for_it() -> None:
    store = MemoryStore("shop")
    store.register(ORDERS, 1, 2)
    site = Site(SPEC, store, nobody, "", None, {})
    stop = threading.Event()
    pool = CopyPool(site, Prepared({ORDERS: ORDERS}, {ORDERS: 8192}), launch, stop)
    pool.start()
    assert stop.wait(60)
    pool.join()
    with pytest.raises(PgetlError, match="The pool of copies met ZeroDivisionError: 1 table") as caught:
        pool.busy()
    assert caught.value.kind is ErrorKind.INTERNAL
