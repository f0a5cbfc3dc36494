"""Names of slots, and back. Pure.

``pgetl_<pipeline>_<instance>_apply`` and ``pgetl_<pipeline>_<instance>_c<attempt>``. A pipeline's name may contain
underscores, an instance may not, so that a name is taken apart from its end in exactly one way: the slots of pipeline
``shop`` are never those of ``shop_eu``. What does not come apart into exactly what would have been put together is not
ours.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError

MAX_BYTES = 63
_PIPELINE = re.compile(r"[a-z0-9_]+")
_INSTANCE = re.compile(r"[a-z0-9]+")
_NAME = re.compile(r"pgetl_([a-z0-9_]+)_([a-z0-9]+)_(?:apply|c([1-9][0-9]*))")


@dataclass(frozen=True, slots=True)
class SlotName:
    """Whose slot it is. `attempt` is the copy attempt that it was made for; None for the apply stream's."""

    pipeline: str
    instance: str
    attempt: int | None = None

    def __str__(self) -> str:
        use = "apply" if self.attempt is None else f"c{self.attempt}"
        return f"pgetl_{self.pipeline}_{self.instance}_{use}"

    @classmethod
    def parse(cls, text: str) -> SlotName | None:
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        pipeline, instance, attempt = found.groups()
        return cls(pipeline, instance, None if attempt is None else int(attempt))


def apply_slot(pipeline: str, instance: str) -> str:
    """The slot of the apply stream."""
    return _validated(SlotName(pipeline, instance))


def copy_slot(pipeline: str, instance: str, attempt: int) -> str:
    """The slot of the sync group that this copy attempt made."""
    if attempt < 1:
        raise ValueError(f"copy attempts count from 1, not {attempt}")
    return _validated(SlotName(pipeline, instance, attempt))


def temporary_slot(pipeline: str, instance: str) -> str:
    """A slot that lives as long as its session. Its name does not come apart into one of those above: it is nobody's to
    look for, or to drop."""
    name = f"pgetl_{pipeline}_{instance}_t{secrets.token_hex(4)}"
    return name if len(name) <= MAX_BYTES else f"pgetl_t{secrets.token_hex(8)}"


def _validated(slot: SlotName) -> str:
    if not _PIPELINE.fullmatch(slot.pipeline) or not _INSTANCE.fullmatch(slot.instance):
        problem = f"The pipeline's id {slot.pipeline!r} cannot be part of a slot's name."
        remedy = "Use lower-case letters, digits and underscores."
        raise PgetlError(ErrorKind.CONFIG, problem, remedy=remedy)
    name = str(slot)
    if len(name) > MAX_BYTES:
        problem = f"The slot name {name} is longer than {MAX_BYTES} bytes."
        raise PgetlError(ErrorKind.CONFIG, problem, remedy="Give the pipeline a shorter id.")
    return name
