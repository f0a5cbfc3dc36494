"""Help, versions and errors of usage are printed at once: no library that connects to servers is imported for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer

import airflow_provider_pgetl
from airflow_provider_pgetl.cli.app import app

ROOT = Path(__file__).parents[2]
HEAVY = ("airflow", "alembic", "deltalake", "numpy", "psycopg", "pyarrow", "pyspark", "rich", "sqlalchemy")

_PROBE = f"""
import atexit, json, sys
def tell():
    loaded = [name for name in {HEAVY!r} if name in sys.modules]
    print(json.dumps(loaded), file=open(sys.argv.pop(), "w"))
atexit.register(tell)
sys.argv[0] = "pgetl"
probe = sys.argv.pop()
arguments, sys.argv[1:] = sys.argv[1:], sys.argv[1:]
sys.argv.append(probe)
from airflow_provider_pgetl.cli.app import app
app(arguments, prog_name="pgetl")
"""


def pgetl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "airflow_provider_pgetl", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        check=False,
    )


def loaded_by(tmp_path: Path, arguments: Sequence[str]) -> list[str]:
    told = tmp_path / "loaded.json"
    subprocess.run(
        [sys.executable, "-c", _PROBE, *arguments, str(told)], cwd=ROOT, capture_output=True, timeout=60, check=False
    )
    loaded: list[str] = json.loads(told.read_text())
    return loaded


@pytest.fixture
def mistaken(tmp_path: Path) -> str:
    path = tmp_path / "shop.toml"
    path.write_text('id = "shop"\ntabels = ["public.*"]\n')
    return str(path)


def test_help_versions_and_usage_load_nothing_heavy(tmp_path: Path) -> None:
    for arguments in (["--help"], ["--version"], ["run", "--help"], ["rub"], ["run"]):
        assert loaded_by(tmp_path, arguments) == [], arguments


def test_a_mistake_in_the_file_loads_no_server_library(tmp_path: Path, mistaken: str) -> None:
    for verb in ("check", "run", "copy", "status", "destroy"):
        assert loaded_by(tmp_path, [verb, mistaken]) == []
    assert loaded_by(tmp_path, ["reset", mistaken, "public.a"]) == []


def test_the_package_itself_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import airflow_provider_pgetl; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; print(new - sys.stdlib_module_names)"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "{'airflow_provider_pgetl'}"


def test_the_version_is_the_projects() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert airflow_provider_pgetl.__version__ == declared
    said = pgetl("--version")
    assert (said.returncode, said.stdout, said.stderr) == (0, f"pgetl {declared}\n", "")


def test_help_names_every_command() -> None:
    said = pgetl("--help")
    assert said.returncode == 0
    for command in typer.main.get_command(app).commands:
        assert f"\n  {command} " in said.stdout


def test_mistakes_of_use_exit_with_2(tmp_path: Path, mistaken: str) -> None:
    for arguments in (
        [],
        ["rub"],
        ["run"],
        ["run", mistaken, "--until", "tomorrow"],
        ["run", mistaken, "--log-format", "xml"],
        ["reset", mistaken],
        ["reset", mistaken, "orders"],
        ["reset", mistaken, "public.*"],
        ["check", str(tmp_path / "none.toml")],
        ["check", mistaken],
    ):
        said = pgetl(*arguments)
        assert said.returncode == 2, arguments
        assert "Traceback" not in said.stderr


def test_each_mistake_in_the_file_is_one_line(mistaken: str) -> None:
    said = pgetl("check", mistaken)
    assert said.stdout == ""
    told = [line.removeprefix(f"pgetl: {mistaken}") for line in said.stderr.splitlines()]
    assert told[0].startswith(':2: tabels: there is no such key; did you mean "tables"? Known here')
    assert told[1:] == [
        f": {name}: it is missing. Add a [{name}] with what belongs into it." for name in ("source", "destination")
    ]


@pytest.mark.parametrize("before", [True, False])
def test_options_stand_before_the_command_or_behind_it(mistaken: str, before: bool) -> None:
    options = ["--log-format", "json", "-v"]
    said = pgetl(*options, "check", mistaken) if before else pgetl("check", mistaken, *options)
    *trace, last = said.stderr.splitlines()
    assert json.loads(last)["exit_code"] == said.returncode == 2
    assert any("Traceback" in line for line in trace)
