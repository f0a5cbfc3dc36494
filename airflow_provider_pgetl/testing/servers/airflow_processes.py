"""A complete Airflow on this machine: api-server, scheduler, dag-processor, triggerer, and a worker where the executor
is Celery's, each a process of its own.

    with Airflow.start(dags=folder, database=uri, connections={"shop_db": "postgresql://…"}) as airflow:
        airflow.rest.trigger("shop_to_postgres")

- ``airflow standalone`` is not used: it leaves its children behind when it is ended, and never replaces a triggerer.
- Each component can be stopped, killed and started again by name; there may be several triggerers (``triggerer-2``).
- All files are in one folder, AIRFLOW_HOME, and everything that Airflow starts inherits that variable. By it alone the
  processes that are left at the end are found: streaming workers and Spark applications lead sessions of their own.
- Nothing outlives the process that started it, not even when that was killed: see `airflow_watchdog`.
- Connections are given in the environment of the processes, so none of them is in Airflow's database.
"""

from __future__ import annotations

import contextlib
import json
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
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
import psutil

from airflow_provider_pgetl.testing.servers.airflow_watchdog import end_everything_of, members_of
from airflow_provider_pgetl.testing.servers.installations import descendants, free_port

# -- Airflow's REST interface, as far as the demo and the tests use it: everything a user does in the UI. --------------

_TIMEOUT_SECONDS = 30.0
_PAGE = 100


@dataclass(frozen=True, slots=True)
class Task:
    """A task instance of a run. `state` is None until the scheduler has processed it."""

    task_id: str
    state: str | None
    try_number: int


class AirflowRest:
    """A session with one api-server on which every user is an administrator."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=_TIMEOUT_SECONDS)

    def close(self) -> None:
        self._http.close()

    # -- reading -------------------------------------------------------------------------------------------------------

    def health(self) -> Mapping[str, str | None]:
        """Returns the status of each component; empty while the api-server does not answer."""
        try:
            answer = self._http.get("/api/v2/monitor/health")
        except httpx.TransportError:
            return {}
        return {name: part.get("status") for name, part in answer.json().items()} if answer.is_success else {}

    def has_dag(self, dag_id: str) -> bool:
        return self._ask("GET", f"/dags/{_quoted(dag_id)}", accept=(404,)) is not None

    def import_errors(self) -> list[str]:
        return [
            f"{each['filename']}: {each['stack_trace']}" for each in self._ask("GET", "/importErrors")["import_errors"]
        ]

    def runs(self, dag_id: str) -> dict[str, str]:
        """Returns the state of each run, the newest first."""
        found = self._ask("GET", f"/dags/{_quoted(dag_id)}/dagRuns?order_by=-run_after")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in found}

    def tasks(self, dag_id: str, run_id: str) -> dict[str, Task]:
        found = self._all(f"{_run(dag_id, run_id)}/taskInstances", "task_instances")
        return {each["task_id"]: Task(each["task_id"], each["state"], each["try_number"]) for each in found}

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int) -> str:
        """Returns the log of one attempt, a line for each event."""
        path = f"{_task(dag_id, run_id, task_id)}/logs/{try_number}?full_content=true"
        content = self._ask("GET", path)["content"]
        return "\n".join(each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in content)

    def links(self, dag_id: str, run_id: str, task_id: str) -> dict[str, str | None]:
        """Returns the addresses of the links that a task instance shows, by their names."""
        found: dict[str, str | None] = self._ask("GET", f"{_task(dag_id, run_id, task_id)}/links")["extra_links"]
        return found

    def plugins(self) -> dict[str, Any]:
        """Returns the plugins by their names."""
        return {each["name"]: each for each in self._ask("GET", "/plugins")["plugins"]}

    def page(self, path: str) -> httpx.Response:
        """Returns a page of the api-server, not of its REST interface."""
        self._sign_in()
        return self._http.get(path)

    def asset_events(self) -> list[str]:
        """Returns the asset's URI for each update of an asset."""
        return [each["uri"] for each in self._all("/assets/events", "asset_events")]

    def _all(self, path: str, key: str) -> list[dict[str, Any]]:
        """Returns all entries of a list, which Airflow answers in pages of limited size."""
        found: list[dict[str, Any]] = []
        while True:
            answer = self._ask("GET", f"{path}?limit={_PAGE}&offset={len(found)}")
            found += answer[key]
            if not answer[key] or len(found) >= answer["total_entries"]:
                return found

    # -- acting -------------------------------------------------------------------------------------------------------

    def pause(self, dag_id: str, paused: bool = True) -> None:
        self._ask("PATCH", f"/dags/{_quoted(dag_id)}", {"is_paused": paused})

    def delete(self, dag_id: str) -> None:
        """Deletes all that Airflow's database has of the DAG."""
        self._ask("DELETE", f"/dags/{_quoted(dag_id)}")

    def trigger(self, dag_id: str) -> str:
        """Starts a run; returns its id."""
        run_id: str = self._ask("POST", f"/dags/{_quoted(dag_id)}/dagRuns", {"logical_date": None})["dag_run_id"]
        return run_id

    def backfill(self, dag_id: str, from_date: str, to_date: str) -> None:
        """Requests the runs of a past time."""
        self._ask("POST", "/backfills", {"dag_id": dag_id, "from_date": from_date, "to_date": to_date})

    def clear(self, dag_id: str, run_id: str, task_id: str) -> list[str]:
        """Clears the task and its downstream tasks, as the UI's Clear does; returns the tasks that were cleared."""
        order = {
            "dry_run": False,
            "only_failed": False,
            "dag_run_id": run_id,
            "task_ids": [task_id],
            "include_downstream": True,
        }
        found = self._ask("POST", f"/dags/{_quoted(dag_id)}/clearTaskInstances", order)["task_instances"]
        return [each["task_id"] for each in found]

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Sets the state of a task, as the UI's "Mark as failed" and "Mark as success" do."""
        self._ask("PATCH", _task(dag_id, run_id, task_id), {"new_state": state})

    # -- how ----------------------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, accept: tuple[int, ...] = ()) -> Any:
        answer = self._send(method, path, body)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            self._sign_in()
            answer = self._send(method, path, body)
        if answer.status_code in accept:
            return None
        if not answer.is_success:
            raise httpx.HTTPStatusError(f"{method} {path}: {answer.text}", request=answer.request, response=answer)
        return answer.json() if answer.content else None

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        return self._http.request(method, f"/api/v2{path}", json=body, headers={"Accept": "application/json"})

    def _sign_in(self) -> None:
        token = self._http.get("/auth/token").raise_for_status().json()["access_token"]
        self._http.headers["Authorization"] = f"Bearer {token}"


def _run(dag_id: str, run_id: str) -> str:
    return f"/dags/{_quoted(dag_id)}/dagRuns/{_quoted(run_id)}"


def _task(dag_id: str, run_id: str, task_id: str) -> str:
    return f"{_run(dag_id, run_id)}/taskInstances/{_quoted(task_id)}"


def _quoted(text: str) -> str:
    return quote(text, safe="")


# -- Airflow processes. ------------------------------------------------------------------------------------------------

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
    """Airflow failed to do what was asked; the message contains the end of a log."""


class Airflow:
    """One Airflow. Created by `Airflow.start`, ended by `close` or `with`."""

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
        """Returns a healthy Airflow. `database` is for its own use; `settings` are further environment variables."""
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
        """Starts a component. `name` is one of `COMPONENTS`, or, with a number appended, another instance of it.
        `arguments` and environment `variables` are for this one alone."""
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
        """Asks the component to end, and kills it if it does not."""
        process = self._running.pop(name)
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            _kill_session(process)

    def kill_component(self, name: str) -> None:
        """Kills the component with what it has forked, at once; processes that lead sessions of their own go on."""
        _kill_session(self._running.pop(name))

    def freeze_component(self, name: str) -> None:
        """Suspends the component with what it has forked, as if the machine stalled; processes that lead sessions of
        their own go on."""
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
        """Returns every process that belongs to this Airflow, whichever its parent is now."""
        return members_of(self.home)

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stops all processes, waits for those that they started, kills the remaining ones, and removes the folder."""
        self.stop()
        self._watchdog.kill()
        self._watchdog.wait()
        self.rest.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def stop(self) -> list[str]:
        """Stops every process; returns the command lines of those that had to be killed."""
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
        module = "airflow_provider_pgetl.testing.servers.airflow_watchdog"
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
        "SPT_NOENV": "1",  # otherwise the titles that processes set overwrite the AIRFLOW_HOME by which they are found
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
