"""From a declaration to a destination: the built-in ones by name, a person's own by import path."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from airflow_provider_pgetl.engine.config import DestinationSpec
from airflow_provider_pgetl.engine.destinations.memory import MemoryDestination, shared_storage
from airflow_provider_pgetl.engine.destinations.protocol import Destination
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError

CONTRACT = ("name", "drop_table_for_copy", "write_table_rows", "write_events", "shutdown")


def open_destination(spec: DestinationSpec, uri: str | None, pipeline: str, worker: str) -> Destination:
    """A fresh destination for one thread of one process.

    `uri` is `spec.uri` resolved, with its secrets. A person's own class is called with its options, and with `uri=`
    where there is one.
    """
    if spec.type == "memory":
        return _configured(_open_memory, spec, {"pipeline": pipeline, **spec.options})
    if spec.type == "postgres":
        return _configured(_open_postgres, spec, {"uri": uri, "pipeline": pipeline, "worker": worker, **spec.options})
    return _open_own(spec, uri)


def _open_memory(pipeline: str, name: str = "") -> Destination:
    return MemoryDestination(shared_storage(name or pipeline))


def _open_postgres(uri: str | None, pipeline: str, worker: str) -> Destination:
    from airflow_provider_pgetl.engine.destinations.postgres import PostgresDestination

    if not uri:
        raise PgetlError(ErrorKind.CONFIG, "[destination] of type postgres has no uri.")
    return PostgresDestination(uri, pipeline, worker)


def _open_own(spec: DestinationSpec, uri: str | None) -> Destination:
    options = dict(spec.options) if uri is None else {**spec.options, "uri": uri}
    made = _configured(_import(spec.type), spec, options)
    lacking = [name for name in CONTRACT if not hasattr(made, name)]
    if lacking:
        raise PgetlError(ErrorKind.CONFIG, f"Destination {spec.type} lacks {', '.join(lacking)}.")
    return made


def _configured(make: Callable[..., Any], spec: DestinationSpec, options: dict[str, Any]) -> Destination:
    try:
        destination: Destination = make(**options)
    except TypeError as error:
        message = f"Destination {spec.type} does not take its options: {error}."
        raise PgetlError(ErrorKind.CONFIG, message) from error
    return destination


def _import(path: str) -> Callable[..., Any]:
    module_name, colon, attribute = path.partition(":")
    if not colon:
        known = 'Destinations are "postgres", "memory" and "package.module:Class"'
        raise PgetlError(ErrorKind.CONFIG, f"There is no destination {path!r}. {known}.")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise PgetlError(ErrorKind.CONFIG, f"Destination {path} cannot be imported: {error}.") from error
    made: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(made):
        raise PgetlError(ErrorKind.CONFIG, f"Destination {path}: module {module_name} has no class {attribute}.")
    return made
