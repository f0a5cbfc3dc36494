"""What differs between releases of Airflow; that each offers it is for `make matrix` to say."""

from __future__ import annotations

import pytest

import airflow_provider_pgetl
from airflow_provider_pgetl import running_airflow


def test_an_airflow_that_is_too_old_is_refused_when_a_dag_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_airflow, "RELEASE", (3, 0))
    with pytest.raises(ImportError, match=r"needs Airflow 3\.1 or newer, and this is Airflow 3\."):
        _ = airflow_provider_pgetl.ReplicationDag


def test_no_release_is_told_of_runs_that_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {}
    for release in ((3, 1), (3, 2), (3, 3)):
        monkeypatch.setattr(running_airflow, "RELEASE", release)
        told[release] = set(running_airflow.without_backfills().get("allowed_run_types", ()))
    assert told[3, 1] == set()
    assert told[3, 3] - told[3, 2] == {"operator_triggered"}
    assert "backfill" not in told[3, 2] | told[3, 3]
