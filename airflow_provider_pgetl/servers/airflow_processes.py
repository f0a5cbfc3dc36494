"""A whole Airflow on this machine: api-server, scheduler, dag-processor, triggerer, and a worker where the executor is
Celery's, each a process of its own.

    with Airflow.start(dags=folder, database=uri, connections={"shop_db": "postgresql://…"}) as airflow:
        airflow.rest.trigger("shop_to_postgres")

- ``airflow standalone`` is not used: it leaves its children behind when it is ended, and never replaces a triggerer.
- Each component can be stopped, killed and started again by name; there may be several triggerers (``triggerer-2``).
- Everything lies in one folder, AIRFLOW_HOME, and everything that Airflow starts inherits that variable. By it, and by
  nothing else, what is left at the end is found: streaming workers and Spark applications lead sessions of their own.
- Nothing outlives the process that started it, not even when that was killed: see `airflow_watchdog`.
- Connections are given in the environment of the processes, so none of them stands in Airflow's database.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import psutil

from airflow_provider_pgetl.servers.airflow_rest import AirflowRest
from airflow_provider_pgetl.servers.airflow_watchdog import end_everything_of, members_of
from airflow_provider_pgetl.servers.processes import descendants, free_port

STARTUP_SECONDS = 180.0
_STOP_SECONDS = 10.0
_GRACE_SECONDS = 5.0

COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
    "worker": ("celery", "worker", "--skip-serve-logs"),
}
_HEALTH_OF = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}


class AirflowError(Exception):
    """Airflow did not do as it was told; the message carries the end of a log."""


class Airflow:
    """One Airflow. Made by `Airflow.start`, ended by `close` or `with`."""

    def __init__(self, dags: Path, database: str, connections: Mapping[str, str], settings: Mapping[str, str]) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="pgetl-airflow-"))
        self.port = free_port()
        self.environment = _environment(self.home, self.port, dags, database, connections) | dict(settings)
        self.rest = AirflowRest(self.url)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._watchdog = self._start_watchdog()

    @classmethod
    def start(
        cls,
        *,
        dags: Path,
        database: str,
        connections: Mapping[str, str],
        settings: Mapping[str, str] | None = None,
    ) -> Self:
        """A healthy Airflow. `database` is for its own use; `settings` are further environment variables."""
        airflow = cls(dags, database, connections, settings or {})
        try:
            airflow._migrate()
            for name in COMPONENTS:
                if name != "worker" or airflow.environment["AIRFLOW__CORE__EXECUTOR"] == "CeleryExecutor":
                    airflow.start_component(name)
            airflow.wait_until_healthy()
        except BaseException:
            airflow.close()
            raise
        return airflow

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # -- its components -----------------------------------------------------------------------------------------------

    def start_component(self, name: str, *arguments: str, variables: Mapping[str, str] = MappingProxyType({})) -> None:
        """`name` is one of `COMPONENTS`, or with a number behind it, another of the kind. `arguments` and `variables`,
        of the environment, are for this one alone."""
        with self.log_file(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                _airflow(*COMPONENTS[_kind(name)], *arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.environment, **variables},
                cwd=self.home,
                start_new_session=True,
            )

    def stop_component(self, name: str) -> None:
        """Ask it to end, and see to it."""
        process = self._running.pop(name)
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            _kill_session(process)

    def kill_component(self, name: str) -> None:
        """Kill it with what it has forked, at once; not what has become a session of its own."""
        _kill_session(self._running.pop(name))

    def freeze_component(self, name: str) -> None:
        """Stop it with what it has forked, as a machine does that stalls; not what has become a session of its own."""
        _signal_session(self._running[name], signal.SIGSTOP)

    def thaw_component(self, name: str) -> None:
        _signal_session(self._running[name], signal.SIGCONT)

    def wait_until_healthy(self) -> None:
        wanted = {_HEALTH_OF[_kind(name)] for name in self._running if _kind(name) in _HEALTH_OF}
        give_up_at = time.monotonic() + STARTUP_SECONDS
        while not all(self.rest.health().get(part) == "healthy" for part in wanted):
            self._refuse_the_dead()
            if time.monotonic() > give_up_at:
                raise AirflowError(f"not healthy within {STARTUP_SECONDS} s: {dict(self.rest.health())}")
            time.sleep(0.5)

    def log_file(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def members(self) -> list[psutil.Process]:
        """Every process that belongs to this Airflow, whoever its parent is now."""
        return members_of(self.home)

    # -- its end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop all of it, wait for what it started to go, end what does not, and remove the folder."""
        self.stop()
        self._watchdog.kill()
        self._watchdog.wait()
        self.rest.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def stop(self) -> list[str]:
        """Stop every process; the command lines of those that had to be killed."""
        for process in self._running.values():
            process.terminate()
        give_up_at = time.monotonic() + _STOP_SECONDS
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, give_up_at - time.monotonic()))
        left = end_everything_of(self.home, _GRACE_SECONDS)
        for process in self._running.values():
            process.wait()
        self._running.clear()
        return left

    # -- how ----------------------------------------------------------------------------------------------------------

    def _migrate(self) -> None:
        done = subprocess.run(
            _airflow("db", "migrate"), check=False, capture_output=True, text=True, env=self.environment, cwd=self.home
        )
        if done.returncode:
            raise AirflowError(f"airflow db migrate failed\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def _refuse_the_dead(self) -> None:
        for name, process in self._running.items():
            if process.poll() is not None:
                end = self.log_file(name).read_text(errors="replace")[-3000:]
                raise AirflowError(f"{name} ended with {process.returncode}\n{end}")

    def _start_watchdog(self) -> subprocess.Popen[bytes]:
        module = "airflow_provider_pgetl.servers.airflow_watchdog"
        command = [sys.executable, "-m", module, str(os.getpid()), str(self.home)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd="/", start_new_session=True)


def _airflow(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "airflow", *arguments]


def _kind(name: str) -> str:
    return name.rstrip("0123456789").removesuffix("-") if name not in COMPONENTS else name


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    family = [each for each in descendants(process.pid) if _session_of(each) == process.pid]
    process.kill()
    for each in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGKILL)
    process.wait()


def _signal_session(process: subprocess.Popen[bytes], number: int) -> None:
    family = [each for each in descendants(process.pid) if _session_of(each) == process.pid]
    for pid in (process.pid, *(each.pid for each in family)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _session_of(process: psutil.Process) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(process.pid)
    return None


def _environment(home: Path, port: int, dags: Path, database: str, connections: Mapping[str, str]) -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "PG"))}
    address = f"http://127.0.0.1:{port}"
    settings = {
        "CORE__DAGS_FOLDER": str(dags),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": "4",
        "CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
        "CORE__FERNET_KEY": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "API__HOST": "127.0.0.1",
        "API__PORT": str(port),
        "API__WORKERS": "1",
        "API__BASE_URL": address,
        "API__SECRET_KEY": secrets.token_urlsafe(32),
        "API_AUTH__JWT_SECRET": secrets.token_urlsafe(64),
        "DATABASE__SQL_ALCHEMY_CONN": database.replace("postgresql://", "postgresql+psycopg2://", 1),
        "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
        "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
        "LOGGING__LOGGING_LEVEL": "INFO",
    }
    return {
        **own,
        **{f"AIRFLOW__{name}": value for name, value in settings.items()},
        **{f"AIRFLOW_CONN_{name.upper()}": uri for name, uri in connections.items()},
        "AIRFLOW_HOME": str(home),
        "SPT_NOENV": "1",  # or the titles that processes give themselves overwrite the AIRFLOW_HOME they are found by
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
