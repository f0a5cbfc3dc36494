"""The removal of a pipeline: everything that it left on the three servers is deleted, except the destination's tables
and rows.

Each step may be repeated, and the state is removed last, so that a removal that was interrupted continues where it
stopped. What several pipelines share is deleted with the last of them.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.destinations.protocol import Destination, Forgetting
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.quantities import format_duration
from airflow_provider_pgetl.engine.model.reports import Noted, Observer
from airflow_provider_pgetl.engine.runtime.processes import in_words, is_gone
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.publication import drop_publications
from airflow_provider_pgetl.engine.source.slots import drop_slot, list_namesakes, list_slots
from airflow_provider_pgetl.engine.state.protocol import Store

_ROUND_SECONDS = 0.5


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
            drop = f"If nobody needs it: SELECT pg_drop_replication_slot('{name}');"
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
        context.runtime.sleep(_ROUND_SECONDS)


def destroy(context: PipelineContext, patience: float = 0.0) -> list[str]:
    """Removes the pipeline. Returns what was removed."""
    await_idle(context, patience)
    with context.connect("destroy") as connection:
        expect_no_state_elsewhere(connection, context.pipeline, context.observer, instance=context.instance)
        context.store.raise_epoch()
        slots = list_slots(connection, context.pipeline, context.instance).values()
        said = [f"Slot {slot.name}." for slot in slots if drop_slot(connection, slot.name, terminate=True)]
        said += [f"Publication {name}." for name in drop_publications(connection, context.spec, context.instance)]
    said += forget_in_destination(context.open_destination, context.pipeline, context.observer)
    context.store.destroy()
    return [*said, f"The state of pipeline {context.pipeline}."]


def forget_in_destination(
    open_destination: Callable[[str], Destination], pipeline: str, observer: Observer
) -> list[str]:
    """Removes the destination's metadata of the pipeline. A destination that no longer exists does not prevent the
    removal of the pipeline."""
    try:
        destination = open_destination("destroy")
        try:
            if not isinstance(destination, Forgetting) or not destination.forget(pipeline):
                return []
        finally:
            destination.shutdown()
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
