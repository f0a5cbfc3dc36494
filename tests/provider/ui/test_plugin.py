"""What every process of Airflow imports for the replication page, and what only the api-server does."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

PROGRAM = """
import sys
import airflow.plugins_manager
before = set(sys.modules)
from airflow_provider_pgetl.ui.plugin import PgetlPlugin
PgetlPlugin.validate()
drivers = {"psycopg", "pyarrow", "pyspark", "numpy", "fastapi", "jinja2", "sqlalchemy", "alembic"}
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before} & drivers))
"""


def test_it_costs_no_process_an_import_of_anything_large() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1].strip() == ""


def test_the_installed_package_offers_it() -> None:
    points = metadata.distribution("airflow-provider-pgetl").entry_points
    [point] = points.select(group="airflow.plugins")
    plugin = point.load()
    assert plugin.name == "pgetl"
    assert [view["href"] for view in plugin.external_views] == ["pgetl/"]
