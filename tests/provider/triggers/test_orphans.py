"""Which tables no task of the run is left to copy."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_pgetl.clearing import begun
from airflow_provider_pgetl.engine.phases import DataSync, FinishedCopy, Init, Ready, TableState
from airflow_provider_pgetl.engine.positions import START
from airflow_provider_pgetl.engine.state.watching import Picture
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.triggers.orphans import Copier, Orphans

T = TableName("public", "t")
U = TableName("public", "u")
COPIERS = (Copier(T, "t.data_sync", ("prepare", "t.init")),)
PASSED = {"prepare": 1.0, "t.init": 2.0, begun("t.data_sync"): 3.0, "t.data_sync": 4.0}
WAITING = Picture({T: TableState(Init())})


def test_a_table_whose_copy_has_passed_is_one_after_a_while() -> None:
    orphans = Orphans(COPIERS)
    assert orphans.found(WAITING, PASSED, 0.0) == []
    assert orphans.found(WAITING, PASSED, 29.0) == []
    assert orphans.found(WAITING, PASSED, 30.0) == [T]


def test_the_while_begins_anew_when_it_was_otherwise_in_between() -> None:
    orphans = Orphans(COPIERS)
    orphans.found(WAITING, PASSED, 0.0)
    orphans.found(Picture({T: TableState(Ready())}), PASSED, 20.0)
    assert orphans.found(WAITING, PASSED, 31.0) == []


def test_a_table_that_its_task_is_about_to_copy_is_none_while_others_are_copied() -> None:
    orphans = Orphans(COPIERS)
    cleared = {**PASSED, begun("t.data_sync"): 5.0}
    busy = Picture({T: TableState(Init()), U: TableState(DataSync(), attempt=7)}, frozenset({7}))
    assert not any(orphans.found(busy, cleared, now) for now in (0.0, 100.0, 10_000.0))


def test_a_task_that_never_comes_back_leaves_one_in_the_end() -> None:
    orphans = Orphans(COPIERS)
    failed = {"prepare": 1.0, "t.init": 2.0, begun("t.data_sync"): 3.0}
    assert orphans.found(WAITING, failed, 0.0) == []
    assert orphans.found(WAITING, failed, 1799.0) == []
    assert orphans.found(WAITING, failed, 1800.0) == [T]


def test_a_paused_pipeline_leaves_none() -> None:
    orphans = Orphans(COPIERS)
    waiting = {"prepare": 1.0, "t.init": 2.0, begun("t.data_sync"): 3.0}
    paused = replace(WAITING, paused=True)
    for known in (waiting, PASSED):
        assert not any(orphans.found(paused, known, now) for now in (0.0, 100.0, 10_000.0))
    assert orphans.found(WAITING, waiting, 10_001.0) == []


def test_a_failed_task_leaves_one_soon_also_where_its_application_never_began() -> None:
    for state in (TableState(Init()), TableState(DataSync(), attempt=7)):
        orphans = Orphans(COPIERS)
        assert orphans.failed(Picture({T: state}), {"t.data_sync"}, 0.0) == []
        assert orphans.failed(Picture({T: state}), {"t.data_sync"}, 5.0) == [T]


def test_a_failed_task_leaves_none_while_somebody_copies_the_table_or_another_needs_the_stream() -> None:
    copied = Picture({T: TableState(DataSync(), attempt=7)}, frozenset({7}))
    beside = Picture({T: TableState(Init()), U: TableState(FinishedCopy(START))})
    for picture in (copied, beside):
        orphans = Orphans(COPIERS)
        assert not any(orphans.failed(picture, {"t.data_sync"}, now) for now in (0.0, 100.0, 10_000.0))
    orphans = Orphans(COPIERS)
    assert not any(orphans.failed(WAITING, {"another.data_sync"}, now) for now in (0.0, 100.0, 10_000.0))


def test_copiers_survive_their_serialised_form() -> None:
    assert Copier.from_json(COPIERS[0].as_json()) == COPIERS[0]
