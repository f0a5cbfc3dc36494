"""What concerns a pipeline as a whole: its owner, its pause, and its removal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from airflow_provider_pgetl.engine.config.spec import PipelineSpec
from airflow_provider_pgetl.engine.context import PipelineContext, SourceSession
from airflow_provider_pgetl.engine.destinations.protocol import Destination, Positions
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.quantities import format_duration
from airflow_provider_pgetl.engine.model.reports import Noted, Observer
from airflow_provider_pgetl.engine.runtime.processes import in_words, is_gone
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.publication import drop_publications
from airflow_provider_pgetl.engine.source.slots import drop_slot, list_namesakes, list_slots
from airflow_provider_pgetl.engine.state.store import Store

# -- The owner of a pipeline: the declaration that prepares it, run after run. ----------------------------------------
#
# Two declarations of the same pipeline id would undo each other's changes with every run: the tables that only one of
# them names are unregistered by the other, and copied again. So the first declaration that prepares a pipeline is
# recorded as its owner, and all others are refused until the pipeline is handed over.
#
# An owner is written ``name`` or ``name@deployment``. If one of two owners has no deployment, only the names are
# compared. A pipeline file names no owner: it may prepare the pipeline as long as nothing else owns it.


def is_same(one: str, other: str) -> bool:
    """Returns whether both are the same owner, as far as each of them specifies."""
    (name, _, deployment), (other_name, _, other_deployment) = one.partition("@"), other.partition("@")
    return name == other_name and (deployment == other_deployment or not deployment or not other_deployment)


def is_handed_over(spec: PipelineSpec, recorded: str) -> bool:
    """Returns whether the declaration takes the pipeline over from the recorded owner."""
    return spec.adopt is not None and is_same(spec.adopt, recorded)


def refusal(spec: PipelineSpec, recorded: str | None) -> PgetlError | None:
    """Returns why this declaration may not prepare or stream the pipeline; None if it may."""
    if recorded is None or is_handed_over(spec, recorded):
        return None
    if spec.owner is None:
        remedy = (
            "Give the pipeline file an id of its own; or, to hand the pipeline over, pause its owner and run "
            "`pgetl release FILE`."
        )
        return PgetlError(
            ErrorKind.OWNED, f"Pipeline {spec.id} belongs to {recorded}, which prepares it.", remedy=remedy
        )
    if is_same(spec.owner, recorded):
        return None
    remedy = (
        "Give this one a `pipeline_id` of its own; or, to hand the pipeline over, pause its owner and declare "
        f'`adopt="{recorded}"` here.'
    )
    message = f"Pipeline {spec.id} belongs to {recorded}, which prepares it; this is {spec.owner}."
    return PgetlError(ErrorKind.OWNED, message, remedy=remedy)


def expect_own(context: PipelineContext) -> None:
    """Raises if the pipeline is owned by another than the declaration's owner. Called before anything is done for a
    declaration."""
    context.store.load()
    refused = refusal(context.spec, context.store.pipeline().owner)
    if refused is not None:
        raise refused


def claim(context: PipelineContext) -> None:
    """Records the declaration's owner as the owner of the pipeline. Of two that do so at the same time, the second is
    refused.

    A pipeline that is taken over from another owner gets a new epoch: the previous owner's streaming worker is fenced,
    and whatever that owner starts from now on is refused.
    """
    owner = context.spec.owner
    while True:
        expect_own(context)
        recorded = context.store.pipeline().owner
        if owner is None or owner == recorded:
            return
        if recorded is not None and "@" not in owner and is_same(owner, recorded):
            return  # the record includes the deployment, which this owner lacks
        if context.store.set_owner(owner, instead_of=recorded):
            break
    if recorded is not None and is_handed_over(context.spec, recorded) and not is_same(owner, recorded):
        context.store.raise_epoch()
        context.observer(Noted("info", f"Pipeline {context.pipeline} was taken over from {recorded}."))


# -- A paused pipeline: its streams have ended and no copy begins, until it is resumed. --------------------------------
#
# The pause is part of the state, and so survives restarts of every process. The streaming worker keeps its lease during
# the pause: no other worker may stream either, and tasks that wait for a stream wait for the pipeline to be resumed.
# Copies that have begun run to their end; their tables are handed over after the pause.
#
# The worker records in the state when its streams have ended for a pause, and `await_end_of_streams` waits for that
# record. It is not enough that no slot is being read: a stream between two connections may still have a write in
# flight, and may connect once more before it learns of the pause.
#
# A pause loses nothing, but the slots retain all WAL from its beginning on.

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 60.0
_ROUND_SECONDS = 0.2
_LOOK_SECONDS = 0.5
_REMEDY = "They do when their worker has read the pause and finished its write: pause once more to wait for that."
# The completion record in which the worker stores, by the store's clock, when its streams have ended.
_PAUSES: Final = "pauses"
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
    return context.store.completions(_PAUSES).get(_STREAMS, 0.0) < since


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
        store.record_completion(_PAUSES, _STREAMS)
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


# -- The removal of a pipeline -----------------------------------------------------------------------------------------
#
# Everything that it left on the three servers is deleted, except the destination's tables and rows. Each step may be
# repeated, and the state is removed last, so that a removal that was interrupted continues where it stopped. What
# several pipelines share is deleted with the last of them.

_CLEANUP_ROUND_SECONDS = 0.5


def expect_idle(store: Store, pipeline: str) -> None:
    """Raises if the pipeline is being streamed or copied."""
    expect_not_streamed(store, pipeline)
    holders = [in_words(each) for each in store.attempt_holders().values() if not is_gone(each)]
    if holders:
        message = f"Pipeline {pipeline} is being copied by {', '.join(holders)}."
        raise PgetlError(ErrorKind.USAGE, message, remedy="Stop `pgetl copy` or `pgetl run` first.")


def expect_not_streamed(store: Store, pipeline: str) -> None:
    lease = store.lease()
    if lease is not None and not is_gone(lease.holder):
        message = f"Pipeline {pipeline} is being streamed by {in_words(lease.holder)}."
        raise PgetlError(ErrorKind.USAGE, message, remedy="Stop `pgetl run` first.")


def expect_no_state_elsewhere(
    connection: Connection, pipeline: str, observer: Observer, *, instance: str | None = None
) -> None:
    """Raises if the removal would delete the destination's metadata of a pipeline of the same id whose state is in
    another store. Such a pipeline is recognized by its slots. `instance`: the instance of the state in this store; None
    if there is none.

    If there is state here, an inactive slot of another instance was left by an earlier state: it remains, with a
    warning.
    """
    for name, slot in list_namesakes(connection, pipeline).items():
        if name.instance == instance:
            continue
        if instance is not None and slot.active_pid is None:
            drop = f"If it is not needed: SELECT pg_drop_replication_slot('{name}');"
            observer(Noted("warning", f"The slot {name} stays: it is of another state than the one here. {drop}"))
            continue
        use = "is not in use" if slot.active_pid is None else "is being streamed"
        message = f"The slot {name} at the source is of pipeline {pipeline}, {use}, and is of a state that is not here."
        remedy = (
            "Point [state] uri at the database that has it; or, if that is gone for good, drop the slot: "
            f"SELECT pg_drop_replication_slot('{name}'); and destroy the pipeline again."
        )
        raise PgetlError(ErrorKind.USAGE, message, remedy=remedy)


def await_idle(context: PipelineContext, patience: float) -> None:
    """Like `expect_idle`, but waits up to `patience` seconds for streams and copies, which may be about to end."""
    deadline = context.runtime.monotonic() + patience
    said = False
    while True:
        try:
            return expect_idle(context.store, context.pipeline)
        except PgetlError as error:
            if error.transient or context.runtime.monotonic() >= deadline:
                raise
            if not said:
                context.observer(Noted("info", f"{error.message} That is waited for, for {format_duration(patience)}."))
                said = True
        context.runtime.sleep(_CLEANUP_ROUND_SECONDS)


def destroy(context: PipelineContext, patience: float = 0.0) -> list[str]:
    """Removes the pipeline. Returns what was removed."""
    await_idle(context, patience)
    with context.connect("destroy") as connection:
        expect_no_state_elsewhere(connection, context.pipeline, context.observer, instance=context.instance)
        context.store.raise_epoch()
        slots = list_slots(connection, context.pipeline, context.instance).values()
        said = [f"Slot {slot.name}." for slot in slots if drop_slot(connection, slot.name, terminate=True)]
        said += [f"Publication {name}." for name in drop_publications(connection, context.spec, context.instance)]
    said += forget_in_destination(context.destination, context.pipeline, context.observer)
    context.store.destroy()
    return [*said, f"The state of pipeline {context.pipeline}."]


def forget_in_destination(
    open_destination: Callable[[str], AbstractContextManager[Destination]], pipeline: str, observer: Observer
) -> list[str]:
    """Removes the destination's metadata of the pipeline. A destination that no longer exists does not prevent the
    removal of the pipeline."""
    try:
        with open_destination("destroy") as destination:
            if not isinstance(destination, Positions) or not destination.forget(pipeline):
                return []
    except PgetlError as error:
        later = "Destroy it again, once that can be reached, before a pipeline of this id runs."
        observer(Noted("warning", f"The destination still remembers the pipeline: {error.message} {later}"))
        return []
    return ["What the destination remembered of positions; its tables stay."]


def withdraw(take_away: Callable[[], bool], observer: Observer) -> list[str]:
    """Removes the schema that the stores share. It is not an error if the schema remains because another session is
    using it."""
    try:
        return ["The tables that the state was in: no pipeline is left there."] if take_away() else []
    except PgetlError as error:
        observer(Noted("warning", f"The tables that the state was in stay: {error.message}"))
        return []
