"""Jobs and results cross processes as JSON, without loss and without secrets."""

import json

from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyResult, CopyTable
from airflow_provider_pgetl.engine.config.spec import DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.copy.ranges import Endpoints
from airflow_provider_pgetl.engine.model.errors import ErrorData, ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName

ODD = TableName("a.b", 'Weird "Ü"')


def test_a_job_comes_back_as_it_was() -> None:
    spec = PipelineSpec(
        id="shop",
        tables=(TableSpec("*.*"),),
        source=SourceSpec("env:SOURCE"),
        destination=DestinationSpec("postgres", uri="env:DESTINATION"),
    )
    job = CopyJob(spec, (CopyTable(ODD, TableName("public", "plain"), replaces=True),), snapshot_only=True)

    assert CopyJob.from_json(json.loads(json.dumps(job.as_json()))) == job


def test_a_result_comes_back_as_it_was() -> None:
    failure = ErrorData(ErrorKind.VALUE, "A value.", "Change it.", str(ODD))
    full = CopyResult(3, (ODD,), {ODD: failure}, {ODD: "It was reset."}, Boundary(5), "pgetl_shop_x_c3", failure)

    for result in (full, CopyResult(4)):
        assert CopyResult.from_json(json.loads(json.dumps(result.as_json()))) == result


def test_exit_codes() -> None:
    table = ErrorData(ErrorKind.VALUE, "-", "-")

    assert CopyResult(1).exit_code == 0
    assert CopyResult(1, failed={ODD: table}).exit_code == 4
    assert CopyResult(1, failed={ODD: table}, failure=ErrorData(ErrorKind.CONNECTION, "-", "-")).exit_code == 1


def test_a_failure_is_the_error_again() -> None:
    error = PgetlError(ErrorKind.TYPE, "There is no type.", remedy="Create it.", table="public.t")
    again = ErrorData.of(error).error

    assert (again.kind, again.table) == (error.kind, error.table)
    assert str(again) == "There is no type. Create it."


def test_resolved_connections_are_never_shown() -> None:
    ends = Endpoints("shop", 1, "0-1", "postgresql://u:secret@h/d", DestinationSpec("memory"), "https://u:secret@h")

    assert "secret" not in repr(ends)
