"""Opens the destination that a spec declares, of whichever type it is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow_provider_pgetl.engine.config.spec import DestinationSpec
from airflow_provider_pgetl.engine.destinations.protocol import Destination
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError

CONTRACT = ("name", "drop_table_for_copy", "write_table_rows", "write_events", "shutdown")


def open_destination(
    spec: DestinationSpec,
    uri: str | None,
    pipeline: str,
    worker: str,
    options: Mapping[str, Any] | None = None,
) -> Destination:
    """Returns a new destination for one thread of one process.

    `uri` is `spec.uri` resolved, with its secrets. `options` are the spec's options as `resolved_options` returned them
    earlier, possibly on another machine.
    """
    made = spec.kind.open(uri, resolved_options(spec) if options is None else options, pipeline, worker)
    lacking = [name for name in CONTRACT if not hasattr(made, name)]
    if lacking:
        raise PgetlError(ErrorKind.CONFIG, f"Destination {spec.type} lacks {', '.join(lacking)}.")
    assert isinstance(made, Destination), "it has all of the contract"
    return made


@contextmanager
def opened_destination(
    spec: DestinationSpec, uri: str | None, pipeline: str, worker: str, options: Mapping[str, Any] | None = None
) -> Iterator[Destination]:
    """Opens the destination for the block."""
    destination = open_destination(spec, uri, pipeline, worker, options)
    try:
        yield destination
    finally:
        destination.shutdown()


def resolved_options(spec: DestinationSpec, environment: Mapping[str, str] = os.environ) -> Mapping[str, Any]:
    """Returns the options with the values of their references."""
    return spec.kind.resolved(spec.options, environment)
