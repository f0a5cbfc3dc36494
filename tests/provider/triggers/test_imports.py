"""A triggerer imports a trigger's class in its event loop, while everybody else's triggers wait."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import airflow.triggers.base
before = set(sys.modules)
import airflow_provider_pgetl.triggers.pgetl
print(*sorted(set(sys.modules) - before))
"""
TRIGGERS = {"airflow_provider_pgetl.triggers.pgetl"}


def test_nothing_is_imported_with_a_trigger_but_its_own_few_lines() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    imported = set(said.splitlines()[-1].split())
    assert imported >= TRIGGERS
    assert imported - TRIGGERS <= {"airflow_provider_pgetl", "airflow_provider_pgetl.triggers"}
