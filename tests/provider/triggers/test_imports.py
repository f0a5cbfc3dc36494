"""A triggerer imports a trigger's class in its event loop, while everybody else's triggers wait."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, time
import airflow.triggers.base, airflow.sdk
from airflow.sdk import BaseHook
from airflow.sdk.observability import stats
before = set(sys.modules)
import airflow_provider_pgetl.triggers.apply, airflow_provider_pgetl.triggers.phase
import airflow_provider_pgetl.triggers.turn, airflow_provider_pgetl.triggers.lag
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before} & {"psycopg", "pyarrow", "numpy"}))
"""


def test_no_driver_is_imported_with_a_trigger() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1].strip() == ""
