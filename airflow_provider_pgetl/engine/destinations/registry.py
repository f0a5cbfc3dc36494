"""From a declaration to a destination: the built-in ones by name, a person's own by import path."""

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
    """A fresh destination for one thread of one process.

    `uri` is `spec.uri` resolved, with its secrets. A person's own class is called with its options, and with `uri=`
    where there is one. The memory of this process is shared by all who open it under the same name, which is the
    pipeline's unless another is given. `options` are the spec's as `resolved_options` gave them elsewhere.
    """
    if spec.type == "memory":
        return MemoryDestination(shared_storage(spec.options.get("name", pipeline)))
    if spec.type == "postgres":
        return _open_postgres(uri, pipeline, worker)
    if spec.type == "delta":
        return _open_delta(resolved_options(spec) if options is None else options, uri, pipeline)
    return _open_own(spec, uri)


def resolved_options(spec: DestinationSpec, environment: Mapping[str, str] = os.environ) -> Mapping[str, Any]:
    """The options with what a built-in destination's refer to; a person's own class gets its options as they are."""
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
