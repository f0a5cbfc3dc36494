"""Passwords are where they must be and nowhere else: not in Airflow's database, not in logs, not in command lines."""

import re
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from tests.postgres_servers import PASSWORD, Database
from tests.processes.replica import DAG, Replica, task_of

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(500)]

# As it stands in connections, and as it stands in their addresses.
SPELLINGS = (PASSWORD, PASSWORD.replace(" ", "%20"))


def _has_secret(text: str) -> bool:
    return any(spelling in text for spelling in SPELLINGS)


def _metadata(replica: Replica) -> Database:
    return Database(replica.destination.server, "airflow")


def _everything_in(session: psycopg.Connection) -> Iterator[tuple[str, str]]:
    names = (
        "select table_name from information_schema.tables where table_schema = 'public' and table_type = 'BASE TABLE'"
    )
    for (name,) in session.execute(names).fetchall():
        rows = sql.SQL("select t::text from {} t").format(sql.Identifier(name))
        for (row,) in session.execute(rows):
            yield name, row


def test_airflow_s_database_holds_no_password(replica: Replica) -> None:
    with _metadata(replica).connect() as session:
        found = list(_everything_in(session))
    assert {"task_instance", "serialized_dag"} <= {name for name, _ in found}
    assert any(name == "trigger" and "shop_db" in row for name, row in found), (
        "`apply` waits, with its connections' ids"
    )
    assert [name for name, row in found if _has_secret(row)] == []


def test_no_log_holds_a_password(replica: Replica) -> None:
    logs = [path for path in replica.airflow.home.rglob("*.log") if path.is_file()]
    assert any(DAG in str(path) for path in logs)
    assert [path for path in logs if _has_secret(path.read_text(errors="replace"))] == []


def test_no_command_line_holds_a_password_not_even_while_a_table_is_copied(replica: Replica) -> None:
    replica.clear(task_of("payments", "data_sync"))
    replica.wait(lambda: bool(replica.drivers()), "Spark runs")
    seen = [" ".join(process.cmdline()) for process in replica.airflow.members()]
    assert any("copy_table.py" in line for line in seen)
    assert any("streaming_process" in line for line in seen)
    assert not any(map(_has_secret, seen))


def test_tasks_leave_nothing_in_xcoms_but_links_and_how_they_ended(replica: Replica) -> None:
    keys = {key for (key,) in _metadata(replica).execute("select key from xcom")}
    assert {key for key in keys if not key.startswith("_link_")} <= {"return_value"}


def test_nothing_of_ours_blocks_the_triggerer(replica: Replica) -> None:
    """asyncio's debug mode names what held the loop up for longer than a tenth of a second."""
    log = replica.airflow.log_file("triggerer").read_text(errors="replace")
    assert "Starting the triggerer" in log
    slow = re.findall(r"Executing .* took [\d.]+ seconds", log)
    assert [line for line in slow if "pgetl" in line] == []
