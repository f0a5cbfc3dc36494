"""A copy lets no value pass for which there was a rule, or is to be one: not even after its column was renamed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_provider_pgetl.engine.config.spec import TableSpec, TransformationSpec, TransformSpec
from airflow_provider_pgetl.engine.copy.attempt import LocalCopy
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.reports import nobody
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.in_process import InProcess

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("source_server", [16], indirect=True)]

PEOPLE = TableName("public", "people")


@pytest.fixture
def people(databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    settings = TransformationSpec(key="env:TRANSFORM_KEY")
    made = InProcess(databases, "postgres", tmp_path, (TableSpec("public.people"),), transformation=settings)
    for name, value in {**made.environment, "TRANSFORM_KEY": "k" * 32}.items():
        monkeypatch.setenv(name, value)
    made.source("create table people (id int primary key, email text, note text)")
    made.source("insert into people values (1, 'canary 1', 'x')")
    return made


def rule(column: str, use: str = "hash") -> TransformSpec:
    return TransformSpec(column, use, "public.people")


def run(people: InProcess) -> str:
    """What a run says of the table that it sets aside, or why there is none."""
    try:
        with people.opened() as pipeline:
            outcome = pipeline.run(until_caught_up=True, stop=threading.Event())
    except PgetlError as error:
        return error.message
    return " ".join(one.reason for one in outcome.errored.values())


def assert_nothing_passed(people: InProcess) -> None:
    assert "canary" not in str(people.databases.destination.execute("select t::text from public.people t"))


@pytest.mark.parametrize("column", ["email", "em*"])
def test_a_renamed_column_by_a_copy_without_a_check_of_the_rules(people: InProcess, column: str) -> None:
    """As a Clear of `data_sync` copies."""
    people.rules = (rule(column),)
    people.catch_up()
    people.source("alter table people rename email to mail", "update people set mail = 'canary 2'")
    assert "for which there is not the same rule" in run(people)
    with people.opened() as pipeline:
        pipeline.reset(PEOPLE)
    with people.opened() as pipeline, pipeline.admitted_copy(PEOPLE) as job:
        assert job is not None
        LocalCopy(job, pipeline.store, nobody).wait(60)
    run(people)
    assert_nothing_passed(people)


def test_a_renamed_column_whose_table_is_copied_again_for_another_rule(people: InProcess) -> None:
    people.rules = (rule("email"), rule("note", "mask"))
    people.catch_up()
    people.source("alter table people rename email to mail")
    people.rules = (rule("email"), rule("note", "hash"))
    assert run(people)
    assert_nothing_passed(people)
    people.rules = (rule("mail"), rule("note", "hash"))
    with people.opened() as pipeline:
        pipeline.reset(PEOPLE)
    assert run(people) == ""
    assert_nothing_passed(people)


def test_a_table_that_was_made_anew_with_another_name_of_the_column(people: InProcess) -> None:
    people.rules = (rule("email"),)
    people.catch_up()
    people.source("create table people2 (id int primary key, mail text, note text)")
    people.source("insert into people2 select * from people", "drop table people")
    people.source("alter table people2 rename to people")
    assert run(people)
    assert_nothing_passed(people)
