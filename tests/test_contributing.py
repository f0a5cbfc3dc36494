"""The worked example of CONTRIBUTING.md: a destination that passes the suite, and replicates."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_pgetl.engine.destinations.protocol import AtomicCopy, Destination, Positions
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing import DestinationConformance
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
MODULE, SUITE, TYPE = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
[DECLARED] = re.findall(r"^```toml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("json_lines")
    (folder / "json_lines.py").write_text(MODULE)
    (folder / "test_json_lines.py").write_text(SUITE)
    return folder


@pytest.fixture(scope="module")
def example(folder: Path) -> Iterator[ModuleType]:
    sys.path.insert(0, str(folder))
    yield importlib.import_module("json_lines")
    sys.path.remove(str(folder))
    del sys.modules["json_lines"]


class TestJsonLines(DestinationConformance):
    @pytest.fixture(autouse=True)
    def _place(self, example: ModuleType, tmp_path: Path) -> None:
        self.example, self.rows_at = example, tmp_path

    def open(self) -> Destination:
        opened: Destination = self.example.JsonLines(str(self.rows_at))
        return opened

    def read(self, table: TableName) -> list[tuple[object, ...]]:
        found = (json.loads(line) for line in (self.rows_at / f"{table}.jsonl").read_bytes().splitlines())
        return [(row["id"], row["name"], row["note"]) for row in found]


def test_it_is_at_least_once(example: ModuleType, tmp_path: Path) -> None:
    opened = example.JsonLines(str(tmp_path))
    assert not isinstance(opened, (AtomicCopy, Positions))


def test_its_declaration_checks_options_and_opens_it(example: ModuleType, tmp_path: Path) -> None:
    declared: dict[str, Any] = {}
    exec(compile(TYPE, "json_lines_type.py", "exec"), declared)
    found = declared["JSON_LINES"]
    found.check({"folder": str(tmp_path)})
    with pytest.raises(PgetlError, match='did you mean "folder"'):
        found.check({"foldr": str(tmp_path)})
    assert isinstance(found.open(None, {"folder": str(tmp_path)}, "shop", "worker"), example.JsonLines)


def test_the_suite_runs_as_it_is_written_there(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder / "test_json_lines.py"],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[1])])},
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"\b1[0-9] passed", done.stdout), done.stdout


@pytest.mark.spark
@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_it_replicates(databases: Databases, folder: Path, tmp_path: Path) -> None:
    source = databases.source
    source.execute("create table items (id int primary key, at timestamptz, price numeric(8, 2), raw bytea)")
    source.execute("insert into items select n, '2026-01-01', n / 4.0, 'x' from generate_series(1, 1000) n")
    file = tmp_path / "shop.toml"
    declared = DECLARED.replace("/data/shop", str(tmp_path / "shop"))
    file.write_text(f'id = "shop"\ntables = ["public.items"]\n[source]\nuri = "env:SOURCE"\n{declared}')

    def run() -> None:
        done = subprocess.run(
            [sys.executable, "-m", "airflow_provider_pgetl", "run", file, "--until", "caught-up"],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(folder), "SOURCE": source.uri},
        )
        assert done.returncode == 0, done.stdout + done.stderr

    run()
    source.execute("update items set price = 0.5 where id = 7")
    source.execute("insert into items select 1001, at, price, raw from items where id = 2")
    source.execute("delete from items where id = 8")
    run()
    lines = (tmp_path / "shop" / "public.items.jsonl").read_text().splitlines()
    rows = {row["id"]: row for row in map(json.loads, lines)}
    assert (len(lines), rows.keys()) == (1000, {*range(1, 1002)} - {8})
    assert rows[7] == {**rows[6], "id": 7, "price": "0.50"}
    assert rows[1001] == {**rows[2], "id": 1001}  # by the stream as by the copy
