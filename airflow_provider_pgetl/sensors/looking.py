"""The look that a sensor takes before it waits: with a pipeline's id and the connection of its state alone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgetl.connections import STATE, value
from airflow_provider_pgetl.declarations import check_pipeline_id
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.failing import failure

if TYPE_CHECKING:
    from airflow_provider_pgetl.engine.state.watching import Picture

log = logging.getLogger(__name__)


def look_at(pipeline: str, state_conn_id: str) -> Picture | None:
    """None if there is no such pipeline yet, or the database is out of reach: both may pass. Changes nothing."""
    from airflow_provider_pgetl.engine.state.watching import look

    try:
        check_pipeline_id(pipeline)
        return look(value(STATE, state_conn_id), pipeline)
    except PgetlError as error:
        if error.transient:
            log.warning("%s It is waited for.", error.message)
            return None
        raise failure(error) from error
