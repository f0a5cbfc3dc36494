"""What a supervisor tells the streaming process, and what that says last: one line of JSON each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from airflow_provider_pgetl.engine.config import PipelineSpec
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError

MODULE = "airflow_provider_pgetl.engine.streaming_process"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be streamed. `environment` holds the values of the declaration's references, secrets among them.

    `beat_seconds`: the supervisor sends a line at least that often; when none comes, it stands still and may have been
    replaced, so the worker ends. None: the supervisor sends none.
    """

    spec: PipelineSpec
    environment: Mapping[str, str] = field(repr=False)
    until_caught_up: bool = False
    beat_seconds: float | None = None

    def to_line(self) -> str:
        given = {
            "environment": dict(self.environment),
            "until_caught_up": self.until_caught_up,
            "beat_seconds": self.beat_seconds,
        }
        return json.dumps({"spec": self.spec.as_json(), **given})

    @classmethod
    def from_line(cls, line: str) -> Order:
        data = json.loads(line)
        spec = PipelineSpec.from_json(data["spec"])
        return cls(spec, data["environment"], data["until_caught_up"], data["beat_seconds"])


@dataclass(frozen=True, slots=True)
class Ending:
    """Without an error the worker ended because it was asked to (`stopped`), or because it had caught up.

    `fenced`: another worker has taken the pipeline over. `abandoned`: the supervisor was not heard of any more.
    """

    kind: str | None = None
    message: str = ""
    remedy: str = ""
    stopped: bool = False
    fenced: bool = False
    abandoned: bool = False

    def to_line(self) -> str:
        return json.dumps({"event": "ended", **asdict(self)}, ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str) -> Ending | None:
        try:
            data = json.loads(line)
        except ValueError:
            return None
        if not isinstance(data, dict) or data.pop("event", None) != "ended":
            return None
        return cls(**data)

    @property
    def error(self) -> PgetlError | None:
        if self.kind is None:
            return None
        return PgetlError(ErrorKind(self.kind), self.message, remedy=self.remedy)
