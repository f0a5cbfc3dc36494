"""What one merge is asked to do: all that has landed for a pipeline. No secrets are in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_pgetl.engine import declaring
from airflow_provider_pgetl.engine.config import PipelineSpec


@dataclass(frozen=True, slots=True)
class MergeJob:
    spec: PipelineSpec

    def as_json(self) -> dict[str, Any]:
        return {"spec": declaring.as_json(self.spec)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MergeJob:
        return cls(declaring.from_json(PipelineSpec, data["spec"]))
