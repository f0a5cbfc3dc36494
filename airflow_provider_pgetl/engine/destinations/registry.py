"""Opens the destination that a spec declares: a built-in one by its name, a custom one by its import path."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_pgetl.engine.config import delta_options
from airflow_provider_pgetl.engine.config.spec import DestinationSpec
from airflow_provider_pgetl.engine.destinations.memory import MemoryDestination, shared_storage
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

    `uri` is `spec.uri` resolved, with its secrets. A custom class is called with its options, and with `uri=` if there
    is a URI. All memory destinations of this process that have the same name share one storage; the name is the
    pipeline's id unless the option `name` gives another. `options` are the spec's options as `resolved_options`
    returned them earlier, possibly on another machine.
    """
    if spec.type == "memory":
        return MemoryDestination(shared_storage(spec.options.get("name", pipeline)))
    if spec.type == "postgres":
        return _open_postgres(uri, pipeline, worker)
    if spec.type == "delta":
        return _open_delta(resolved_options(spec) if options is None else options, uri, pipeline)
    return _open_own(spec, uri)


def resolved_options(spec: DestinationSpec, environment: Mapping[str, str] = os.environ) -> Mapping[str, Any]:
    """Resolves references in the options of a built-in destination; a custom class gets its options unchanged."""
    return delta_options.resolved(spec.options, environment) if spec.type == "delta" else spec.options


def _open_delta(options: Mapping[str, Any], uri: str | None, pipeline: str) -> Destination:
    try:
        from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
    except ImportError as error:
        remedy = "Install airflow-provider-pgetl[delta], here and on the executors."
        raise PgetlError(ErrorKind.CONFIG, f"Delta Lake needs more packages: {error}.", remedy=remedy) from error
    if uri is None:
        raise PgetlError(ErrorKind.CONFIG, "The destination's URI was not resolved.")
    return DeltaDestination(uri, pipeline, options)


def _open_postgres(uri: str | None, pipeline: str, worker: str) -> Destination:
    from airflow_provider_pgetl.engine.destinations.postgres import PostgresDestination

    if uri is None:
        raise PgetlError(ErrorKind.CONFIG, "The destination's URI was not resolved.")
    return PostgresDestination(uri, pipeline, worker)


def _open_own(spec: DestinationSpec, uri: str | None) -> Destination:
    options = dict(spec.options) if uri is None else {**spec.options, "uri": uri}
    try:
        made: Destination = _import(spec.type)(**options)
    except TypeError as error:
        message = f"Destination {spec.type} does not take its options: {error}."
        raise PgetlError(ErrorKind.CONFIG, message) from error
    lacking = [name for name in CONTRACT if not hasattr(made, name)]
    if lacking:
        raise PgetlError(ErrorKind.CONFIG, f"Destination {spec.type} lacks {', '.join(lacking)}.")
    return made


def _import(path: str) -> Callable[..., Any]:
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise PgetlError(ErrorKind.CONFIG, f"Destination {path} cannot be imported: {error}.") from error
    made: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(made):
        raise PgetlError(ErrorKind.CONFIG, f"Destination {path}: module {module_name} has no class {attribute}.")
    return made
