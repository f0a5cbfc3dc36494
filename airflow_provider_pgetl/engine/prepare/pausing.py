"""A paused pipeline: its streams have ended and no copy begins, until it is resumed.

Paused is a fact of the state, which stays over restarts of everything. The streaming worker keeps its lease while it is
so: nobody else may stream either, and those who wait for a stream wait for the pipeline to be resumed. Copies that have
begun end; what they have copied is handed over after the pause.

The worker says in the state when its streams have ended for a pause, and whoever pauses waits for that. That no slot is
read is not enough: a stream between two connections may have a write under way still, and connect once more before it
has heard of the pause.

A pause loses nothing, and costs: the slots retain all WAL from its beginning on.
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
# Where the worker notes, in the book of completions and by the store's clock, when its streams have ended.
_BOOK: Final = "pauses"
_STREAMS: Final = "streams"
_PAUSED = "The pipeline is paused: nothing is streamed, and the source retains its WAL, until it is resumed."


def is_paused(store: Store) -> bool:
    """As far as the store's cache shows."""
    return store.pipeline().paused is not None


def await_end_of_streams(context: PipelineContext) -> None:
    """Until whoever streams has said that its streams have ended, or nobody holds the lease, and no stream reads its
    slot any more: then nothing that is committed from now on arrives before the pipeline is resumed, and nothing is
    being written. For a bounded time; whoever streams hears of the pause within a second or so, unless its connection
    to the state is broken, and finishes its write."""
    deadline = context.runtime.monotonic() + PATIENCE_SECONDS
    with context.source.session("pause") as session:
        while _may_stream(context) or _reads_a_slot(context, session):
            if context.runtime.monotonic() > deadline:
                message = f"The pipeline is paused, but its streams have not ended within {PATIENCE_SECONDS:.0f} s."
                raise PgetlError(ErrorKind.SLOT_IN_USE, message, remedy=_REMEDY)
            context.runtime.sleep(_ROUND_SECONDS)


def _may_stream(context: PipelineContext) -> bool:
    """Whether somebody holds the lease who has not ended its streams for this pause."""
    context.store.load()
    since, lease = context.store.pipeline().paused, context.store.lease()
    if since is None or lease is None or context.runtime.is_gone(lease.holder):
        return False
    return context.store.completions(_BOOK).get(_STREAMS, 0.0) < since


def _reads_a_slot(context: PipelineContext, session: SourceSession) -> bool:
    """A copy that is only just making its slot streams nothing; it may wait long for transactions of others."""
    slots = session.list_slots()
    copies = context.store.live_attempts()
    return any(slot.active_pid is not None and name.attempt not in copies for name, slot in slots.items())


def await_resumption(context: PipelineContext, is_over: Callable[[], bool]) -> None:
    """Until the pipeline is not paused, by looks at the store itself, or it `is_over`. Whoever calls this has no stream
    and holds nothing of the tables, so whoever resets one meanwhile does not wait for an acknowledgement."""
    _look(context.store)  # who has waited for the lease knows the state of before
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
    """False while that cannot be noted."""
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
