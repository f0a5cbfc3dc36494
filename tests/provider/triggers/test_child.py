"""The streaming worker's process as its supervisor sees it; other programs stand in for the worker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from airflow_provider_pgetl.declarations import Postgres, declare
from airflow_provider_pgetl.engine.config.jobs import Ending, Order
from airflow_provider_pgetl.engine.model.reports import nobody
from airflow_provider_pgetl.triggers import child
from airflow_provider_pgetl.triggers.child import Child

SPEC = declare("shop", source_conn_id="shop_db", tables=["public.orders"], destination=Postgres("replica_db")).spec

MUCH = {"PGETL_SOURCE_URI": "x" * (1 << 20)}


def ran(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Ending | None, str]:
    """How a child with this program ended, and what is told of it."""
    (folder / "stand_in.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(child, "MODULE", "stand_in")

    async def scenario() -> tuple[Ending | None, str]:
        process = await Child.start(Order(SPEC, MUCH), nobody)
        try:
            return await asyncio.wait_for(process.ending(), 60), process.last_words
        finally:
            process.kill()

    return asyncio.run(scenario())


def test_a_child_may_complain_at_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words are taken to the end, and the last of them are told."""
    program = f"""
import sys
sys.stdin.readline()
sys.stderr.write("x" * (4 << 20) + " and so on\\nthe cause\\n")
sys.stderr.flush()
print({Ending("internal", "it said so").to_line()!r})
sys.exit(3)
"""
    ending, last_words = ran(program, tmp_path, monkeypatch)
    assert ending == Ending("internal", "it said so")
    assert last_words.startswith("exit status 3: x")
    assert last_words.endswith("and so on\nthe cause")
    assert len(last_words) < 5000


def test_of_a_child_that_died_without_a_word_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has read what it is to do."""
    assert ran("", tmp_path, monkeypatch) == (None, "exit status 0: it said nothing")
