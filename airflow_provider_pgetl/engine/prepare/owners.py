"""Whose a pipeline is: whoever declares it and prepares it, run after run. Pure.

Two that declare a pipeline of one id would undo each other's declaration with every run: the tables that only one of
them names are unregistered by the other, and copied again. So the first that prepares a pipeline is recorded as its
owner, and everybody else is refused until the pipeline is handed over.

An owner is written ``name`` or ``name@deployment``. Where one side does not know its deployment, names decide alone. A
pipeline file names no owner: what it declares may be prepared as long as nobody else owns it.
"""

from __future__ import annotations

from airflow_provider_pgetl.engine.config.spec import PipelineSpec
from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.reports import Noted


def is_same(one: str, other: str) -> bool:
    """Whether both are the same owner, as far as each of them says."""
    (name, _, deployment), (other_name, _, other_deployment) = one.partition("@"), other.partition("@")
    return name == other_name and (deployment == other_deployment or not deployment or not other_deployment)


def is_handed_over(spec: PipelineSpec, recorded: str) -> bool:
    """Whether the declaration says that the pipeline is taken over from the owner that is recorded."""
    return spec.adopt is not None and is_same(spec.adopt, recorded)


def refusal(spec: PipelineSpec, recorded: str | None) -> PgetlError | None:
    """Why the pipeline may not be prepared or streamed by who declares this; None if it may."""
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
# The pipeline's owner in the store: looked at before anything is done for a declaration, recorded before anything is
# changed. See `owners` for what an owner is.


def expect_own(context: PipelineContext) -> None:
    """Refuse what is declared by another than the pipeline's owner."""
    context.store.load()
    refused = refusal(context.spec, context.store.pipeline().owner)
    if refused is not None:
        raise refused


def claim(context: PipelineContext) -> None:
    """Record who declares the pipeline as its owner. Of two that do so at once, the second is refused.

    A pipeline that is taken over from another owner gets a new epoch: the other's streaming worker is fenced, and what
    it starts from now on is refused.
    """
    owner = context.spec.owner
    while True:
        expect_own(context)
        recorded = context.store.pipeline().owner
        if owner is None or owner == recorded:
            return
        if recorded is not None and "@" not in owner and is_same(owner, recorded):
            return  # the record says more than this one knows of itself
        if context.store.set_owner(owner, instead_of=recorded):
            break
    if recorded is not None and is_handed_over(context.spec, recorded) and not is_same(owner, recorded):
        context.store.raise_epoch()
        context.observer(Noted("info", f"Pipeline {context.pipeline} was taken over from {recorded}."))
