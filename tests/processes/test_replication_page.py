"""The replication page in a real api-server."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from airflow.models.log import Log
from sqlalchemy import select
from sqlalchemy.orm import Session

from airflow_provider_pgetl.demo.shop import TABLES
from airflow_provider_pgetl.engine.model.tables import written
from airflow_provider_pgetl.testing.servers.installations import free_port
from airflow_provider_pgetl.testing.servers.postgres_servers import PASSWORD
from airflow_provider_pgetl.ui.declared import KnownPipeline, known_pipelines
from tests.processes.replica import DAG, Replica, task_of

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800)]

TABLE = f"/pgetl/pipelines/{DAG}/table?schema=public&name=orders"
PAUSE = f"/pgetl/pipelines/{DAG}/actions/pause"
API = "/pgetl/api/v1"
PAGES = ("/pgetl/", f"/pgetl/pipelines/{DAG}", "/pgetl/pipelines/nothing", TABLE, PAUSE)
ANSWERS = (
    f"{API}/pipelines",
    f"{API}/pipelines/{DAG}",
    f"{API}/pipelines/{DAG}/tables/public.orders",
    f"{API}/openapi.json",
)
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


@pytest.mark.parametrize("path", [*PAGES, *ANSWERS])
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


# -- what users may do ------------------------------------------------------------------------------------------------


def paused(replica: Replica) -> bool:
    ((since,),) = replica.source.execute("select paused from pgetl.pipelines where id = %s", [DAG])
    return since is not None


def pipelines_of(replica: Replica) -> dict[str, Any]:
    return {one["id"]: one for one in replica.rest.page(f"{API}/pipelines").json()}


def audited(replica: Replica) -> list[tuple[str, str, str]]:
    engine = replica.metadata()
    with Session(engine) as session:
        query = select(Log.event, Log.owner, Log.extra).where(Log.event.startswith("pgetl.")).order_by(Log.id)
        found = [(event, owner, extra) for event, owner, extra in session.execute(query)]
    engine.dispose()
    return found


def test_who_may_edit_the_dag_is_offered_to_pause_and_told_what_it_costs(strict: httpx.Client) -> None:
    pages = {user: strict.get(PAGES[1], headers=_signed_in(strict, user)).text for user in PASSWORDS}
    assert {user for user, page in pages.items() if "actions/pause" in page} == {"edith"}
    page = strict.get(PAUSE, headers=_signed_in(strict, "edith")).text
    assert "The source retains its WAL meanwhile" in page
    assert strict.get(PAUSE, headers=_signed_in(strict, "victor")).status_code == httpx.codes.FORBIDDEN


def test_who_may_only_read_can_do_nothing(strict: httpx.Client, settled: Replica) -> None:
    victor = _signed_in(strict, "victor")
    answers = [
        strict.post(PAUSE, headers=victor),
        strict.post(f"{API}/pipelines/{DAG}/actions", headers=victor, json={"action": "pause"}),
        strict.post(PAUSE),
    ]
    assert [answer.status_code for answer in answers] == [403, 403, 401]
    assert not paused(settled)


def test_nobody_can_be_made_to_act_by_another_site(strict: httpx.Client, settled: Replica) -> None:
    edith = _signed_in(strict, "edith")
    for sent in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"}):
        assert strict.post(PAUSE, headers=edith | sent).status_code == httpx.codes.FORBIDDEN
    assert not paused(settled)


def test_a_pipeline_is_paused_and_resumed_and_the_audit_log_says_by_whom(
    strict: httpx.Client, settled: Replica
) -> None:
    edith = _signed_in(strict, "edith") | {"Sec-Fetch-Site": "same-origin"}
    before = len(audited(settled))
    done = strict.post(PAUSE, headers=edith)
    assert (done.status_code, done.headers["location"]) == (303, f"/pgetl/pipelines/{DAG}?done=pause")
    assert paused(settled)
    page = strict.get(done.headers["location"], headers=edith).text
    assert "The pipeline is paused." in page
    assert "actions/resume" in page
    answer = strict.post(f"{API}/pipelines/{DAG}/actions", headers=edith, json={"action": "resume"})
    assert answer.json() == {"action": "resume", "pipeline": DAG, "table": None}
    assert not paused(settled)
    about = json.dumps({"pipeline": DAG})
    assert audited(settled)[before:] == [("pgetl.pause", "edith", about), ("pgetl.resume", "edith", about)]
    settled.wait(lambda: pipelines_of(settled)[DAG]["state"] == "streaming", "it streams again")


def test_what_cannot_be_done_is_said_and_not_recorded(strict: httpx.Client, settled: Replica) -> None:
    edith, there = _signed_in(strict, "edith"), f"{API}/pipelines/{DAG}/actions"
    before = audited(settled)
    unknown = strict.post(there, headers=edith, json={"action": "copy_again", "table": "public.nothing"})
    assert (unknown.status_code, unknown.json()["detail"]) == (
        409,
        f"Pipeline {DAG} has no table public.nothing. Look again.",
    )
    assert strict.post(there, headers=edith, json={"action": "copy_again"}).status_code == 422
    assert strict.post(there, headers=edith, json={"action": "drop everything"}).status_code == 422
    elsewhere = strict.post(f"{API}/pipelines/nothing/actions", headers=edith, json={"action": "pause"})
    assert elsewhere.status_code == 404
    assert audited(settled) == before


# -- the API ----------------------------------------------------------------------------------------------------------


def test_programs_are_answered_what_the_page_shows(settled: Replica) -> None:
    known = pipelines_of(settled)
    assert known[DAG]["phases"] == {"Ready": len(TABLES)}
    assert known[DAG]["dag_id"] == DAG
    [whole] = settled.rest.page(f"{API}/pipelines/{DAG}?span=day").json()
    assert {one["table"] for one in whole["tables"]} == set(map(written, TABLES))
    assert all(one["phase"] == "Ready" and one["reason"] is None for one in whole["tables"])
    assert whole["span_seconds"] == 120
    assert whole["slots"][0]["active"]
    table = settled.rest.page(f"{API}/pipelines/{DAG}/tables/public.orders").json()
    assert [one["phase"] for one in table["phases"]][-1] == "Ready"
    assert table["versions"][0]["key"] == ["id"]


def test_the_api_describes_itself(settled: Replica) -> None:
    described = settled.rest.page(f"{API}/openapi.json").json()
    assert f"{API}/pipelines/{{pipeline}}/actions" in described["paths"]
    assert all(path.startswith(API) for path in described["paths"])
    for path in (f"{API}/pipelines/nothing", f"{API}/pipelines/{DAG}/tables/public.nothing"):
        assert settled.rest.page(path).status_code == httpx.codes.NOT_FOUND
    assert settled.rest.page(f"{API}/pipelines/{DAG}?span=year").status_code == 422


# -- the page ---------------------------------------------------------------------------------------------------------


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
