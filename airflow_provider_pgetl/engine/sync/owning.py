"""The pipeline's owner in the store: looked at before anything is done for a declaration, recorded before anything is
changed. See `owners` for what an owner is."""

from __future__ import annotations

from airflow_provider_pgetl.engine.owners import is_handed_over, is_same, refusal
from airflow_provider_pgetl.engine.reports import Noted
from airflow_provider_pgetl.engine.sync.site import Site


def expect_own(site: Site) -> None:
    """Refuse what is declared by another than the pipeline's owner."""
    site.store.load()
    refused = refusal(site.spec, site.store.pipeline().owner)
    if refused is not None:
        raise refused


def claim(site: Site) -> None:
    """Record who declares the pipeline as its owner. Of two that do so at once, the second is refused.

    A pipeline that is taken over from another owner gets a new epoch: the other's streaming worker is fenced, and what
    it starts from now on is refused.
    """
    owner = site.spec.owner
    while True:
        expect_own(site)
        recorded = site.store.pipeline().owner
        if owner is None or owner == recorded:
            return
        if recorded is not None and "@" not in owner and is_same(owner, recorded):
            return  # the record says more than this one knows of itself
        if site.store.set_owner(owner, instead_of=recorded):
            break
    if recorded is not None and is_handed_over(site.spec, recorded) and not is_same(owner, recorded):
        site.store.raise_epoch()
        site.observer(Noted("info", f"Pipeline {site.pipeline} was taken over from {recorded}."))
