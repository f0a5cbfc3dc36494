"""Passwords are where they must be and nowhere else: not in Airflow's database, not in logs. (Command lines are looked
at while a table is copied: `test_truth_table`.)"""

from collections.abc import Iterator

import pytest
import sqlalchemy

from tests.processes.replica import DAG, Replica, has_secret

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800)]


def _everything_in(engine: sqlalchemy.Engine) -> Iterator[tuple[str, str]]:
    """The name of a table, and the text of a row of it."""
    with engine.connect() as session:
        for name in sqlalchemy.inspect(engine).get_table_names():
            for row in session.execute(sqlalchemy.select(sqlalchemy.text("*")).select_from(sqlalchemy.table(name))):
                yield name, str(row)


def test_airflow_s_database_holds_no_password(settled: Replica) -> None:
    found = list(_everything_in(settled.metadata()))
    assert {"task_instance", "serialized_dag"} <= {name for name, _ in found}
    assert any(name == "trigger" and "ApplyTrigger" in row for name, row in found), "`apply` waits"
    assert [name for name, row in found if has_secret(row)] == []


def test_no_log_holds_a_password(settled: Replica) -> None:
    logs = [path for path in settled.airflow.home.rglob("*.log") if path.is_file()]
    assert any(DAG in str(path) for path in logs)
    assert [path for path in logs if has_secret(path.read_text(errors="replace"))] == []


def test_tasks_leave_nothing_in_xcoms_but_links_and_how_they_ended(settled: Replica) -> None:
    with settled.metadata().connect() as session:
        keys = set(session.scalars(sqlalchemy.text("select key from xcom")))
    assert {key for key in keys if not key.startswith("_link_")} <= {"return_value"}
