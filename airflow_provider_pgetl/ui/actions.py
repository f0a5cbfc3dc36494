"""What a user may do from the replication page and its API: pause and resume a pipeline, have a table copied again.

Offered and allowed to users who may edit the pipeline's DAG. A page says beforehand what an action does and costs; only
a POST request acts. Each action is in Airflow's audit log, as `pgetl.pause`, `pgetl.resume` or `pgetl.copy_again`, with
the DAG, the user, the pipeline and the table; one that fails is not.

A browser sends Airflow's cookie with requests that other sites' pages make it send, so a POST must come from the page
itself: `expect_same_site`.
"""

from __future__ import annotations

import json
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.log import Log
from airflow.utils.session import create_session
from fastapi import Depends, HTTPException, Request, status

from airflow_provider_pgetl.connections import STATE, stored_value
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.quantities import format_size
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.engine.monitoring import interventions
from airflow_provider_pgetl.running_airflow import deployment
from airflow_provider_pgetl.ui.declared import KnownPipeline
from airflow_provider_pgetl.ui.found import Found
from airflow_provider_pgetl.wording import in_airflow


class Action(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    COPY_AGAIN = "copy_again"

    @property
    def words(self) -> str:
        return {"pause": "Pause", "resume": "Resume", "copy_again": "Copy again"}[self]

    @property
    def is_of_table(self) -> bool:
        return self is Action.COPY_AGAIN


def offered(found: Found, editable: frozenset[str]) -> list[Action]:
    """Returns what the user may do to the pipeline as it is now; nothing to one that has not run or is not known."""
    if found.survey is None or found.trouble is not None or found.dag_id not in editable:
        return []
    return [Action.RESUME if found.survey.paused else Action.PAUSE]


def consequences(action: Action, found: Found, table: TableName | None) -> list[str]:
    """Returns what the action does and costs, as sentences."""
    match action:
        case Action.PAUSE:
            retained = sum(slot.retained_bytes or 0 for slot in found.slots.own) if found.slots else None
            now = "" if retained is None else f" (now {format_size(retained)})"
            return [
                f"The stream of {found.id} ends within seconds, and no copy begins until it is resumed.",
                "Copies that have begun go on. Its tasks stay deferred; nothing fails.",
                f"The source retains its WAL meanwhile{now}: a pause must not outlast the disk of the source.",
            ]
        case Action.RESUME:
            return [f"The stream of {found.id} goes on where it ended, and waiting copies begin."]
        case Action.COPY_AGAIN:
            surveyed = None if table is None else found.table(table)
            rows = None if surveyed is None else surveyed.rows
            size = "" if rows is None else f" ({rows:,} rows at its last copy)"
            return [
                f"{table} is copied again, as a whole{size}. Readers keep the old rows until the new copy is there.",
                "A continuous run ends, as no task of it is left to copy the table; the next run does.",
                'A run until="caught_up" fails: wait for its end first.',
            ]


def carry_out(action: Action, known: KnownPipeline, table: TableName | None, user: BaseUser) -> None:
    """Acts, and records it in Airflow's audit log."""
    if known.state_conn_id is None:
        raise HTTPException(status.HTTP_409_CONFLICT, "The pipeline has not run yet.")
    with create_session() as session:
        session.add(_entry(action, known, table, user))
        session.flush()
        try:
            _act(action, known, stored_value(STATE, known.state_conn_id, known.team), table)
        except PgetlError as error:
            code = status.HTTP_503_SERVICE_UNAVAILABLE if error.transient else status.HTTP_409_CONFLICT
            raise HTTPException(code, f"{error.message} {in_airflow(error.remedy or '')}".rstrip()) from None


def _act(action: Action, known: KnownPipeline, uri: str, table: TableName | None) -> None:
    def is_own(owner: str | None) -> bool:
        whose, _, there = (owner or "").partition("@")
        return owner is None or (whose.partition("/")[0] == known.dag_id and (not there or deployment() in ("", there)))

    match action:
        case Action.PAUSE:
            interventions.pause(uri, known.id, is_own)
        case Action.RESUME:
            interventions.resume(uri, known.id, is_own)
        case Action.COPY_AGAIN:
            if table is None:
                raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "Name the table that is to be copied again.")
            interventions.copy_again(uri, known.id, [table], is_own)


def _entry(action: Action, known: KnownPipeline, table: TableName | None, user: BaseUser) -> Log:
    about = {"pipeline": known.id} | ({} if table is None else {"table": written(table)})
    return Log(f"pgetl.{action}", owner=user.get_name(), extra=json.dumps(about), dag_id=known.dag_id)


# -- Who may. ----------------------------------------------------------------------------------------------------------


def editable_dags(user: GetUserDep) -> frozenset[str]:
    """Returns the ids of the DAGs that the user may edit."""
    return frozenset(get_auth_manager().get_authorized_dag_ids(user=user, method="PUT"))


EditableDags = Annotated[frozenset[str], Depends(editable_dags)]


def expect_editable(meant: list[KnownPipeline], editable: frozenset[str], dag_id: str | None) -> KnownPipeline:
    """Returns the one pipeline that is to be acted upon. `dag_id` tells which where several DAGs declare its id."""
    chosen = [one for one in meant if dag_id in (None, one.dag_id)]
    if len(chosen) != 1:
        raise HTTPException(status.HTTP_409_CONFLICT, "Several DAGs declare this pipeline: name the DAG.")
    if chosen[0].dag_id not in editable:
        raise HTTPException(status.HTTP_403_FORBIDDEN, f"You may not edit the DAG {chosen[0].dag_id}.")
    return chosen[0]


def expect_same_site(request: Request) -> None:
    """Refuses a request that a page of another site has a browser send. Programs send neither header."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    is_same = site in ("same-origin", "none") if site else not origin or urlsplit(origin).netloc == _host(request)
    if not is_same:
        raise HTTPException(status.HTTP_403_FORBIDDEN, "This request comes from another site.")


def _host(request: Request) -> str | None:
    return request.headers.get("host")
