"""The look that a sensor takes before it waits: with a pipeline's id and the connection of its state alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgetl.connections import STATE, value
from airflow_provider_pgetl.declarations import check_pipeline_id
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.failing import failure

if TYPE_CHECKING:
    from airflow_provider_pgetl.engine.state.watching import Picture


def look_at(pipeline: str, state_conn_id: str) -> Picture | None:
    """None if there is no such pipeline yet. Changes nothing."""
    from airflow_provider_pgetl.engine.state.watching import look

    try:
        check_pipeline_id(pipeline)
        return look(value(STATE, state_conn_id), pipeline)
    except PgetlError as error:
        raise failure(error) from error
