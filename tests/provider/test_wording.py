"""Remedies of the engine, as they are told in Airflow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import airflow_provider_pgetl.engine
from airflow_provider_pgetl import Postgres, ReplicationDag
from airflow_provider_pgetl.engine.config.jobs import CopyResult
from airflow_provider_pgetl.engine.config.secrets import READABLE
from airflow_provider_pgetl.engine.model.errors import DIRECTIVES, ErrorData, ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import Errored, Init, Ready, RetryPolicy, TableState
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.errored_tables import errored_table
from airflow_provider_pgetl.failures import errored, failure, outlasted
from airflow_provider_pgetl.wording import in_airflow, with_clear

ENGINE = Path(airflow_provider_pgetl.engine.__file__).parent
# What is said of pipeline files alone, and to the command line alone.
ELSEWHERE = {"pipeline_file.py", "application.py"}
OF_FILES = "Give the pipeline file an id of its own;"
COMMANDS = "check|run|copy|status|merge|rollback|reset|destroy|release"
FOREIGN = re.compile(
    rf"`pgetl ({COMMANDS})\b|\bFILE\b|pipeline file|\[\w+\] |\[\[|\[destination|\w = (true|false|\")|"
    r"\bin the URI\b|postgresql://user@|\bcopy\.\w+|`exclude`"
)


def sentences() -> Iterator[tuple[str, str]]:
    """Every text in the engine's code that looks like one for people, and the file that it is in."""
    for path in sorted(ENGINE.rglob("*.py")):
        if path.name in ELSEWHERE:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        passed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        passed |= {id(one) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for one in node.values}
        for node in ast.walk(tree):
            if id(node) in passed:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = [str(one.value) if isinstance(one, ast.Constant) else "x.y" for one in node.values]
                yield path.name, "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path.name, node.value


SPOKEN = [
    (name, text)
    for name, text in sentences()
    if not text.startswith(OF_FILES)
    and re.search(
        r"`pgetl |pipeline file|\[\[table\]\]|\[(state|destination|source)\b|FILE|in the URI|^Write postgresql:|"
        r"lower copy\.|`exclude`|`failover = ",
        text,
    )
]


def test_the_engine_speaks_of_the_command_line_somewhere() -> None:
    assert len(SPOKEN) > 10


@pytest.mark.parametrize(("name", "text"), SPOKEN, ids=[f"{name}-{number}" for number, (name, _) in enumerate(SPOKEN)])
def test_no_sentence_speaks_of_files_and_commands_in_airflow(name: str, text: str) -> None:
    del name
    assert not FOREIGN.search(in_airflow(text)), in_airflow(text)


@pytest.mark.parametrize("kind", ErrorKind)
def test_no_directive_does_either(kind: ErrorKind) -> None:
    assert not FOREIGN.search(in_airflow(DIRECTIVES[kind].remedy))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Copy the table again: `pgetl reset FILE public.orders`.", "Copy the table again: clear its `data_sync`."),
        ("Drop the constraint, then roll the table back.", "Drop the constraint, then clear its `ready`."),
        ("or declare it with `insert_only = true`.", "or declare it with `insert_only=True`."),
        ('or set on_slot_lost = "resync".', 'or set `on_slot_lost="resync"`.'),
        ("Reset the tables with `pgetl reset`, or", "Reset the tables by a Clear of `data_sync` of each, or"),
        ("Begin anew: `pgetl destroy FILE`.", "Begin anew: destroy the pipeline with a `DestroyOperator`."),
        ("or lower copy.table_workers.", "or lower `table_workers` in `Copying(…)`."),
        ("`failover = true`, but", "`failover=True`, but"),
        (
            "Check that the store is up, and [destination.storage].",
            "Check that the store is up, and the connection of the store.",
        ),
        ("or name one that exists in the URI.", "or name one that exists in its connection."),
        (READABLE, "Correct the host of its connection."),
        ("Nothing is said of either.", "Nothing is said of either."),
    ],
)
def test_the_words_of_airflow(said: str, told: str) -> None:
    assert in_airflow(said) == told


def test_failures_of_tasks_are_told_in_them() -> None:
    assert "Correct the declaration in the DAG's file." in str(failure(PgetlError(ErrorKind.CONFIG, "No.")))
    phase = Errored("It does not fit.", "Change it, then roll the table back.", RetryPolicy(), Init())
    said = str(errored(TableName("public", "orders"), phase, "…"))
    assert said == (
        "public.orders is Errored: It does not fit. Change it, then clear this task. "
        "A retry cannot help until that is done."
    )


# A remedy, with what is done about it by the task that has failed of it, and of a table that was Ready.
REMEDIES = [
    ("Widen the column.", "Widen the column. Then clear {}."),
    ("Drop the constraint, then roll the table back.", "Drop the constraint, then clear {}."),
    ("Copy the table again: `pgetl reset FILE TABLE`.", "Copy the table again: clear its `data_sync`."),
    ("Mend it, then copy it again with `pgetl reset FILE TABLE`.",
     "Mend it, then copy it again by a Clear of its `data_sync`."),
    ("", "Then clear {}."),
]  # fmt: skip


@pytest.mark.parametrize(("remedy", "told"), REMEDIES)
def test_a_remedy_names_one_clear_and_one_that_helps(remedy: str, told: str) -> None:
    assert with_clear(remedy, "this task") == told.format("this task")
    orders, manual = TableName("public", "orders"), RetryPolicy()
    phase = Errored("It does not fit.", remedy, manual, "Ready")
    was_ready = errored_table(orders, TableState(phase), 0.0)
    copying = errored_table(orders, TableState(replace(phase, from_phase="DataSync")), 0.0)
    assert was_ready is not None
    assert copying is not None
    assert was_ready.what_to_do == told.format("the table's `data_sync`, which copies it again")
    assert copying.what_to_do == told.format("the table's task that has failed")
    assert str(errored(orders, phase, "…", "its `data_sync`")) == (
        f"public.orders is Errored: It does not fit. {told.format('its `data_sync`')} "
        "A retry cannot help until that is done."
    )


@pytest.mark.parametrize("kind", ErrorKind)
def test_no_failure_names_a_clear_twice(kind: ErrorKind) -> None:
    assert len(re.findall(r"\b[Cc]lear\b", str(failure(PgetlError(kind, "No."))))) <= 1
    assert len(re.findall(r"\b[Cc]lear\b", str(outlasted(PgetlError(kind, "No."), 60.0)))) <= 1


def test_why_a_table_of_a_group_could_not_be_copied_is_logged_in_the_words_of_airflow(
    capsys: pytest.CaptureFixture[str],
) -> None:
    orders = TableName("public", "orders")
    dag = ReplicationDag("shop", source_conn_id="shop_db", tables=[str(orders)], destination=Postgres("replica_db"))
    copy: Any = dag[str(orders)].data_sync
    said = ErrorData(ErrorKind.PREFLIGHT, "It holds rows.", 'Set `existing = "replace"`. Then roll the table back.')
    pipeline = SimpleNamespace(state=lambda _: SimpleNamespace(phase=Ready()))
    copy._judge(CopyResult(1, failed={orders: said}), pipeline)
    assert 'It holds rows. Set `existing="replace"`. Then clear its `ready`.' in capsys.readouterr().out
