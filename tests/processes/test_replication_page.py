"""The replication page in a real api-server."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy.orm import Session

from airflow_provider_pgetl.demo.shop import TABLES
from airflow_provider_pgetl.testing.servers.installations import free_port
from airflow_provider_pgetl.testing.servers.postgres_servers import PASSWORD
from airflow_provider_pgetl.ui.declared import KnownPipeline, known_pipelines
from tests.processes.replica import DAG, Replica, task_of

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800)]

TABLE = f"/pgetl/pipelines/{DAG}/table?schema=public&name=orders"
PAGES = ("/pgetl/", f"/pgetl/pipelines/{DAG}", "/pgetl/pipelines/nothing", TABLE)
PASSWORDS = {"victor": "may look", "edith": "may edit"}


@pytest.fixture(scope="module")
def strict(running_replica: Replica, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """An api-server of the same Airflow where not everybody is an administrator, and nobody signed in."""
    port = free_port()
    passwords = tmp_path_factory.mktemp("passwords") / "passwords.json"
    passwords.write_text(json.dumps(PASSWORDS))
    environment = running_replica.airflow.environment | {
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "victor:viewer,edith:user",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
    }
    command = [sys.executable, "-m", "airflow", "api-server"]
    server = subprocess.Popen(
        command, env=environment, cwd=running_replica.airflow.home, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            running_replica.wait(lambda: _answers(client), "the api-server answers")
            yield client
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/api/v2/monitor/health").is_success
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("path", PAGES)
def test_who_is_not_signed_in_sees_nothing(strict: httpx.Client, path: str) -> None:
    answer = strict.get(path)
    assert answer.status_code == httpx.codes.UNAUTHORIZED
    assert DAG not in answer.text


def _signed_in(strict: httpx.Client, name: str) -> dict[str, str]:
    answer = strict.post("/auth/token", json={"username": name, "password": PASSWORDS[name]})
    return {"Authorization": f"Bearer {answer.json()['access_token']}"}


def test_who_is_signed_in_sees_what_airflow_lets_him(strict: httpx.Client) -> None:
    authorization = _signed_in(strict, "victor")
    assert DAG in strict.get("/pgetl/", headers=authorization).text
    assert strict.get("/pgetl/", headers={"Authorization": "Bearer forged"}).status_code == httpx.codes.FORBIDDEN


def test_slots_of_others_are_named_to_those_who_may_edit_the_dag(strict: httpx.Client, settled: Replica) -> None:
    name = "pgetl_gone_a1b2c3_apply"
    settled.source.execute(f"select pg_create_logical_replication_slot('{name}', 'pgoutput')")
    try:
        pages = {user: strict.get(PAGES[1], headers=_signed_in(strict, user)).text for user in PASSWORDS}
    finally:
        settled.source.execute(f"select pg_drop_replication_slot('{name}')")
    assert {user for user, page in pages.items() if name in page} == {"edith"}
    assert all("Replication slots" in page for page in pages.values())


def test_airflow_takes_it_for_a_plugin_of_its_own(settled: Replica) -> None:
    plugin = settled.rest.plugins()["pgetl"]
    assert [view["href"] for view in plugin["external_views"]] == ["pgetl/"]
    assert [each["url_prefix"] for each in plugin["fastapi_apps"]] == ["/pgetl"]


def test_the_overview_shows_every_pipeline(settled: Replica) -> None:
    page = settled.rest.page("/pgetl/")
    assert page.status_code == httpx.codes.OK
    assert page.headers["Cache-Control"] == "no-store"
    assert f"{len(TABLES)} Ready" in page.text
    assert "streaming" in page.text
    assert "orders_report" in page.text, "the examples are known too, although they may never have run"
    assert PASSWORD not in page.text


def test_a_pipeline_s_page_shows_every_table_of_it(settled: Replica) -> None:
    page = settled.rest.page(f"/pgetl/pipelines/{DAG}").text
    for table in TABLES:
        [line] = re.findall(rf'<tr id="{table}">.*?</tr>', page, re.DOTALL)
        assert "Ready" in line
        assert re.search(r'class="number">[\d,]+<', line)
    assert re.search(r"<td>pgetl_\w+_apply</td>\s*<td>yes</td>", page), "the slot of its stream"
    assert PASSWORD not in page


def test_what_is_not_there_is_not_found(settled: Replica) -> None:
    for path in ("/pgetl/pipelines/nothing", TABLE.replace("orders", "nothing"), TABLE.replace(DAG, "nothing")):
        assert settled.rest.page(path).status_code == httpx.codes.NOT_FOUND


def test_a_table_s_page_shows_its_way_to_ready(settled: Replica) -> None:
    page = settled.rest.page(TABLE).text
    for phase in ("Init", "DataSync", "FinishedCopy", "Ready"):
        assert f'<td class="{phase}">{phase}</td>' in page
    assert "numeric" in page, "its columns"
    [tasks] = re.findall(r'href="([^"]*/tasks/group/[^"]*)"', page)
    assert tasks.endswith(task_of("orders", "").rstrip("."))


def test_the_history_is_kept_and_plotted(settled: Replica) -> None:
    settled.wait(
        lambda: "Nothing has been measured" not in settled.rest.page(f"/pgetl/pipelines/{DAG}").text, "a measurement"
    )
    for span in ("hour", "day", "weeks", "nonsense"):
        page = settled.rest.page(f"/pgetl/pipelines/{DAG}?span={span}").text
        assert re.search(r'aria-label="Memory of the worker, at most [\d.]+ MiB"', page)


def test_the_links_of_tasks_lead_there(settled: Replica) -> None:
    for task, mark in ((task_of("orders", "ready"), "#public.orders"), ("apply", "")):
        settled.wait(
            lambda task=task: settled.rest.links(DAG, settled.run, task)["Replication"], f"{task} has its links"
        )
        address = str(settled.rest.links(DAG, settled.run, task)["Replication"])
        assert address == f"{settled.airflow.url}/pgetl/pipelines/{DAG}{mark}"
        assert settled.rest.page(address).is_success


def test_only_the_pipelines_of_dags_that_may_be_read_are_known(settled: Replica) -> None:
    engine = settled.metadata()
    with Session(engine) as session:
        assert known_pipelines(session, set()) == []
        assert known_pipelines(session, {DAG, "sales_report"}) == [KnownPipeline(DAG, DAG, "shop_db", "shop_db")]
        everything = known_pipelines(session, {DAG, "shop_to_postgres", "orders_every_quarter"})
    engine.dispose()
    assert [known.id for known in everything] == ["orders_report", DAG, "shop_to_postgres"]
