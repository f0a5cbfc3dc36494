"""Airflow's REST interface, as far as the demo and the tests use it: everything a person does in the UI."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

_TIMEOUT_SECONDS = 30.0
_PAGE = 100


@dataclass(frozen=True, slots=True)
class Task:
    """A task instance of a run. `state` is None until the scheduler has looked at it."""

    task_id: str
    state: str | None
    try_number: int


class AirflowRest:
    """A session with one api-server where everybody is an administrator."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=_TIMEOUT_SECONDS)

    def close(self) -> None:
        self._http.close()

    # -- looking ------------------------------------------------------------------------------------------------------

    def health(self) -> Mapping[str, str | None]:
        """Component → status; empty while the api-server does not answer."""
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
        """Run → state, the newest first."""
        found = self._ask("GET", f"/dags/{_quoted(dag_id)}/dagRuns?order_by=-run_after")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in found}

    def tasks(self, dag_id: str, run_id: str) -> dict[str, Task]:
        found = self._all(f"{_run(dag_id, run_id)}/taskInstances", "task_instances")
        return {each["task_id"]: Task(each["task_id"], each["state"], each["try_number"]) for each in found}

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int) -> str:
        """One attempt's log, a line for each event."""
        path = f"{_task(dag_id, run_id, task_id)}/logs/{try_number}?full_content=true"
        content = self._ask("GET", path)["content"]
        return "\n".join(each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in content)

    def links(self, dag_id: str, run_id: str, task_id: str) -> dict[str, str | None]:
        """Name → address of the links that a task instance shows."""
        found: dict[str, str | None] = self._ask("GET", f"{_task(dag_id, run_id, task_id)}/links")["extra_links"]
        return found

    def plugins(self) -> dict[str, Any]:
        """Name → what a plugin brings."""
        return {each["name"]: each for each in self._ask("GET", "/plugins")["plugins"]}

    def page(self, path: str) -> httpx.Response:
        """A page of the api-server, not of its REST interface."""
        self._sign_in()
        return self._http.get(path)

    def asset_events(self) -> list[str]:
        """The assets' names or addresses, one for each time that one was updated."""
        return [each["uri"] for each in self._all("/assets/events", "asset_events")]

    def _all(self, path: str, key: str) -> list[dict[str, Any]]:
        """Of a list: Airflow answers a page at a time, of no more entries than it allows."""
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
        """All that Airflow knows of the DAG."""
        self._ask("DELETE", f"/dags/{_quoted(dag_id)}")

    def trigger(self, dag_id: str) -> str:
        """Start a run; its id."""
        run_id: str = self._ask("POST", f"/dags/{_quoted(dag_id)}/dagRuns", {"logical_date": None})["dag_run_id"]
        return run_id

    def backfill(self, dag_id: str, from_date: str, to_date: str) -> None:
        """Ask for the runs of a time that has passed."""
        self._ask("POST", "/backfills", {"dag_id": dag_id, "from_date": from_date, "to_date": to_date})

    def clear(self, dag_id: str, run_id: str, task_id: str) -> list[str]:
        """As the UI's Clear does: what follows the task is taken along. The tasks that were cleared."""
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
        """As the UI's "Mark as failed" and "Mark as success" do."""
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
