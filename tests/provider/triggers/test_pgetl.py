"""When triggers fire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent

from airflow_provider_pgetl.triggers.pgetl import AdmissionTrigger, PipelineTrigger


class _Failing(PipelineTrigger):
    work = f"{__name__}:fail_at_once"

    def stored(self) -> dict[str, Any]:
        return {}


async def fail_at_once(_: PipelineTrigger) -> AsyncIterator[TriggerEvent]:
    raise ZeroDivisionError
    yield


async def _fired(trigger: PipelineTrigger) -> Any:
    async for event in trigger.run():
        return event.payload
    raise AssertionError("no event")


def test_none_fires_before_the_scheduler_has_heard_that_its_task_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PipelineTrigger, "least_seconds", 1.5)
    began = time.monotonic()
    assert asyncio.run(_fired(AdmissionTrigger("shop", "shop_db", ["public", "t"], 2, not_before=0.0))) == {"due": True}
    assert time.monotonic() - began >= 1.5


def test_none_fails_before_that_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PipelineTrigger, "least_seconds", 0.5)
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(_fired(_Failing()))
    assert time.monotonic() - began >= 0.5
