"""A paused pipeline: its streams have ended and no copy begins, until it is resumed.

The pause is part of the state, and so survives restarts of every process. The streaming worker keeps its lease during
the pause: no other worker may stream either, and whoever waits for a stream waits for the pipeline to be resumed.
Copies that have begun run to their end; their tables are handed over after the pause.

The worker records in the state when its streams have ended for a pause, and `await_end_of_streams` waits for that
record. It is not enough that no slot is being read: a stream between two connections may still have a write in flight,
and may connect once more before it learns of the pause.

A pause loses nothing, but the slots retain all WAL from its beginning on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from airflow_provider_pgetl.engine.context import PipelineContext, SourceSession
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.reports import Noted
from airflow_provider_pgetl.engine.state.protocol import Store

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 60.0
_ROUND_SECONDS = 0.2
_LOOK_SECONDS = 0.5
_REMEDY = "They do when their worker hears of the pause and has finished its write: pause once more to wait for that."
# The completion record in which the worker stores, by the store's clock, when its streams have ended.
_BOOK: Final = "pauses"
_STREAMS: Final = "streams"
_PAUSED = "The pipeline is paused: nothing is streamed, and the source retains its WAL, until it is resumed."


def is_paused(store: Store) -> bool:
    """Returns whether the pipeline is paused, as of the last load of the store."""
    return store.pipeline().paused is not None


def await_end_of_streams(context: PipelineContext) -> None:
    """Waits until the worker has recorded that its streams have ended, or no worker holds the lease, and no stream
    reads a slot any more. From then on, nothing that is committed arrives before the pipeline is resumed, and no write
    is in flight. Raises after `PATIENCE_SECONDS`. A worker learns of the pause within about a second, unless its
    connection to the state is broken, and finishes its write."""
    deadline = context.runtime.monotonic() + PATIENCE_SECONDS
    with context.source.session("pause") as session:
        while _may_stream(context) or _reads_a_slot(context, session):
            if context.runtime.monotonic() > deadline:
                message = f"The pipeline is paused, but its streams have not ended within {PATIENCE_SECONDS:.0f} s."
                raise PgetlError(ErrorKind.SLOT_IN_USE, message, remedy=_REMEDY)
            context.runtime.sleep(_ROUND_SECONDS)


def _may_stream(context: PipelineContext) -> bool:
    """Returns whether a worker holds the lease that has not ended its streams for this pause."""
    context.store.load()
    since, lease = context.store.pipeline().paused, context.store.lease()
    if since is None or lease is None or context.runtime.is_gone(lease.holder):
        return False
    return context.store.completions(_BOOK).get(_STREAMS, 0.0) < since


def _reads_a_slot(context: PipelineContext, session: SourceSession) -> bool:
    """Returns whether a slot is in use. The slot of a live copy attempt does not count: a copy that is still creating
    its slot streams nothing, and may wait long for transactions of others."""
    slots = session.list_slots()
    copies = context.store.live_attempts()
    return any(slot.active_pid is not None and name.attempt not in copies for name, slot in slots.items())


def await_resumption(context: PipelineContext, is_over: Callable[[], bool]) -> None:
    """Waits until the pipeline is not paused, by reading the store, or until `is_over`. The caller has no stream and
    holds no table, so new generations are acknowledged here: a reset during the pause does not wait for the worker."""
    _look(context.store)  # after a wait for the lease, the loaded state is old
    if not is_paused(context.store):
        return
    context.observer(Noted("warning", _PAUSED))
    noted_for: float | None = None
    while (since := context.store.pipeline().paused) is not None and not is_over():
        if since != noted_for and _note_end_of_streams(context.store):
            noted_for = since
        context.runtime.sleep(_LOOK_SECONDS)
        _look(context.store)
    if not is_paused(context.store):
        context.observer(Noted("info", "The pipeline is resumed."))


def _look(store: Store) -> None:
    try:
        store.load()
        if is_paused(store):
            _acknowledge(store)
    except PgetlError as error:
        if not error.transient:
            raise
        log.warning("Whether the pipeline is paused cannot be seen: %s", error)


def _note_end_of_streams(store: Store) -> bool:
    """Returns False if the record cannot be written now."""
    try:
        store.record_completion(_BOOK, _STREAMS)
    except PgetlError as error:
        if not error.transient:
            raise
        log.warning("That the streams have ended cannot be noted yet: %s", error)
        return False
    return True


def _acknowledge(store: Store) -> None:
    records = store.tables().values()
    new = {one.table: one.state.generation for one in records if one.acknowledged < one.state.generation}
    if new:
        store.acknowledge(new)
