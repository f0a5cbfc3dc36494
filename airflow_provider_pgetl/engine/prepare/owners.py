"""The owner of a pipeline: the declaration that prepares it, run after run. Pure, except for the last section.

Two declarations of the same pipeline id would undo each other's changes with every run: the tables that only one of
them names are unregistered by the other, and copied again. So the first declaration that prepares a pipeline is
recorded as its owner, and all others are refused until the pipeline is handed over.

An owner is written ``name`` or ``name@deployment``. If one of two owners has no deployment, only the names are
compared. A pipeline file names no owner: it may prepare the pipeline as long as nothing else owns it.
"""

from __future__ import annotations

from airflow_provider_pgetl.engine.config.spec import PipelineSpec
from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.reports import Noted


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


# ----------------------------------------------------------------------------------------------------------------------
# The pipeline's owner in the store. It is checked before anything is done for a declaration, and recorded before
# anything is changed.


def expect_own(context: PipelineContext) -> None:
    """Raises if the pipeline is owned by another than the declaration's owner."""
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
