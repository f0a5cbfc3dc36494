"""A pipeline in this process, between real servers or into a lake."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_pgetl.engine.config.spec import (
    DestinationSpec,
    PipelineSpec,
    SourceSpec,
    StreamSpec,
    TableSpec,
    TransformationSpec,
    TransformSpec,
)
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.without_spark import LocalPipeline


@dataclass
class InProcess:
    """`kind` is the destination's type. The servers' URIs must be in the environment, see `environment`."""

    databases: Databases
    kind: str = "postgres"
    folder: Path = Path()
    tables: tuple[TableSpec, ...] = (TableSpec("public.t"),)
    options: Mapping[str, Any] = field(default_factory=dict)
    min_interval: float = 0.05
    rules: tuple[TransformSpec, ...] = ()
    transformation: TransformationSpec = field(default_factory=TransformationSpec)

    @property
    def spec(self) -> PipelineSpec:
        places = {"postgres": "env:PGETL_DESTINATION_URI", "delta": str(self.folder / "lake")}
        uri = places.get(self.kind)
        return PipelineSpec(
            "shop",
            self.tables,
            SourceSpec("env:PGETL_SOURCE_URI"),
            DestinationSpec(self.kind, uri, self.options),
            stream=StreamSpec(min_interval=self.min_interval),
            transform=self.rules,
            transformation=self.transformation,
        )

    @property
    def environment(self) -> Mapping[str, str]:
        source, destination = self.databases
        return {"PGETL_SOURCE_URI": source.uri, "PGETL_DESTINATION_URI": destination.uri}

    @contextmanager
    def opened(self) -> Iterator[LocalPipeline]:
        with closing(LocalPipeline(self.spec)) as pipeline:
            yield pipeline

    def source(self, *statements: str) -> None:
        for statement in statements:
            self.databases.source.execute(statement)

    def catch_up(self) -> None:
        with self.opened() as pipeline:
            outcome = pipeline.run(until_caught_up=True, stop=threading.Event())
            assert not outcome.errored, outcome

    @contextmanager
    def streamed(self) -> Iterator[None]:
        """A worker streams from when all is caught up until the end of the block."""
        stop, errors = threading.Event(), []

        def stream() -> None:
            try:
                with self.opened() as pipeline:
                    pipeline.stream(until_caught_up=False, stop=stop)
            except BaseException as error:  # the test is to see it
                errors.append(error)

        worker = threading.Thread(target=stream)
        worker.start()
        try:
            with self.opened() as pipeline:
                while pipeline.store.lease() is None:
                    assert not errors, errors
                    time.sleep(0.05)
                    pipeline.store.load()
            yield
        finally:
            stop.set()
            worker.join(60)
        assert not errors, errors

    def slots(self) -> list[str]:
        query = "select slot_name::text from pg_replication_slots where database = current_database() order by 1"
        return [name for (name,) in self.databases.source.execute(query)]
