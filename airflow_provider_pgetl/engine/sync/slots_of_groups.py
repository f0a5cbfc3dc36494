"""The slots of sync groups, told from the apply stream's."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_pgetl.engine.source.slot_names import SlotName
from airflow_provider_pgetl.engine.source.slots import Slot


def group_slots(slots: Mapping[SlotName, Slot]) -> dict[int, Slot]:
    """By the attempt that made them."""
    return {name.attempt: slot for name, slot in slots.items() if name.attempt is not None}
