"""`pgetl demo` before anything is started: what it offers, and what it misses."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner, Result

from airflow_provider_pgetl.cli.app import app
from airflow_provider_pgetl.cli.demo import PACKAGES, ReplicateTo
from airflow_provider_pgetl.demo import demonstration
from airflow_provider_pgetl.demo.demonstration import PAGE, DemoFailed, Interrupted, java_trouble
from airflow_provider_pgetl.demo.destinations import DESTINATIONS
from airflow_provider_pgetl.ui.plugin import PgetlPlugin

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def pgetl_demo(**variables: str) -> Result:
    return CliRunner().invoke(app, ["demo", "--once"], env=variables)


def test_it_offers_the_destinations_that_the_demo_has() -> None:
    assert {each.value for each in ReplicateTo} == set(DESTINATIONS)


def test_it_looks_for_every_package_of_the_extra() -> None:
    wanted = [*EXTRAS["demo"], *EXTRAS["delta"], *EXTRAS["spark"]]
    names = {Requirement(each).name.replace("-", "_") for each in wanted}
    assert set(PACKAGES) == names - {"airflow_provider_pgetl"}


def test_it_needs_nothing_that_only_tests_need() -> None:
    """The servers are in `testing`, whose suite needs pytest; the extra `demo` does not bring that."""
    code = "import sys; sys.modules['pytest'] = None; import airflow_provider_pgetl.demo.demonstration"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_it_shows_the_address_of_the_replication_page() -> None:
    [page] = [each for each in PgetlPlugin.external_views if each["name"] == "Replication"]
    assert f"/plugin/{page['url_route']}" == PAGE


@pytest.mark.parametrize(
    ("ended", "once", "code"), [(Interrupted, False, 0), (Interrupted, True, 130), (DemoFailed, True, 1)]
)
def test_its_exit_code(monkeypatch: pytest.MonkeyPatch, ended: type[Exception], once: bool, code: int) -> None:
    def demonstrate(*_: object, **__: object) -> None:
        raise ended

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(demonstration, "demonstrate", demonstrate)
    try:
        assert demonstration.run_demo("delta", once=once, orders=100) == code
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


def test_without_the_extra_it_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    said = pgetl_demo()
    assert said.exit_code == 2
    assert "needs packages that are not installed: duckdb. Install airflow-provider-pgetl[demo]." in said.output


@pytest.mark.parametrize(("home", "words"), [("none", "JAVA_HOME is"), ("old", "of version 11")])
def test_without_a_fitting_java_it_says_so(tmp_path: Path, home: str, words: str) -> None:
    java = tmp_path / "old" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    said = pgetl_demo(JAVA_HOME=str(tmp_path / home))
    assert said.exit_code == 2
    assert re.search(rf"Spark needs Java 17 or later; .*{words}.*\. Install a Java runtime", said.output)


def test_a_java_is_looked_for_on_the_path(tmp_path: Path) -> None:
    assert java_trouble({"PATH": str(tmp_path)}) == "Spark needs Java 17 or later; java is not on the path."
    for number, fits in (("17.0.1", True), ("9", False), ("21", True)):
        (tmp_path / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{number}\"' >&2\n")
        (tmp_path / "java").chmod(0o755)
        assert (java_trouble({"PATH": str(tmp_path)}) is None) is fits
