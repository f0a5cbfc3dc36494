"""The end of a pipeline: everything that it left on the three servers goes, but for the destination's tables and rows.

Each step may be done again, and what was removed last is the state, so that a destroying that was cut short is taken up
where it stopped. What several pipelines share goes with the last of them.
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
    """Refuse while somebody streams it or copies for it."""
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
    """Refuse what would take from a pipeline of this id, whose state is elsewhere, what the destination remembers of
    it. Its slots tell of it. `instance`: the state's that is here; None where there is none.

    With state here, a slot that nobody uses is what an earlier state has left: it stays, and that is told.
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
    """The same, once what streams or copies has been waited for so long: it may be about to end by itself."""
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
    """What was removed."""
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
    """A destination that is no more must not keep a pipeline from being removed."""
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
    """The schema that stores share. That it stays, because somebody is at work in it, is no failure."""
    try:
        return ["The tables that the state was in: no pipeline is left there."] if take_away() else []
    except PgetlError as error:
        observer(Noted("warning", f"The tables that the state was in stay: {error.message}"))
        return []
