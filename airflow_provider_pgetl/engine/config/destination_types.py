"""Types of destinations: what is known of a destination before it is opened, such as its options.

A destination declares its type beside its code, and is found by name: those that pgetl includes in
`destinations.BUILT_IN`, those of other packages by entry points of the group `pgetl.destinations`. A class that
has no such declaration is named by its import path, ``package.module:Class``, and is given its options as they are.

Declarations are read in every process, so a module that declares a type must not import what only an opened
destination needs.
"""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from airflow_provider_pgetl.engine.config.validation import Misdeclared, check_keys, suggestion
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema

GROUP = "pgetl.destinations"
_PACKAGE = "airflow_provider_pgetl.engine.destinations"
_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_OWN_KEYS = ("type", "uri", "existing")


class ColumnDescription(NamedTuple):
    """A column of a table in a destination; `type` as SQL writes it there."""

    name: str
    type: str
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class DestinationType(ABC):
    """What a destination declares of itself. The methods receive options as they are declared.

    `options`: the keys that may be set beside those of every destination. `needs_uri`: why a URI is needed, None if it
    is not. `in_process`: it exists in the memory of one process, so copies run in that process. `computes`: the tables
    that it creates compute the columns that the source generates and does not send.
    """

    name: str
    options: tuple[str, ...] = ()
    needs_uri: str | None = None
    in_process: bool = False
    computes: bool = False

    @abstractmethod
    def open(self, uri: str | None, options: Mapping[str, Any], pipeline: str, worker: str) -> object:
        """Returns a new destination, for one thread of one process. `uri` and `options` are resolved and contain
        secrets."""

    def check(self, options: Mapping[str, Any]) -> None:
        """Raises an error (`validation.refuse`, with the key) unless the options are valid."""
        check_keys(options, self.options, beside=_OWN_KEYS)

    def read_uri(self, uri: str) -> str:
        """Returns the URI, or the reference to it, in the form in which it is kept. Raises an error unless it is
        valid."""
        return uri

    def resolved(self, options: Mapping[str, Any], environment: Mapping[str, str]) -> Mapping[str, Any]:
        """Returns the options with the values of their references."""
        del environment
        return options

    def lands(self, options: Mapping[str, Any]) -> bool:
        """Returns whether changes land beside the tables, to be merged into them by a separate task."""
        del options
        return False

    def form(self, options: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns the options that decide what a copy makes of a table; see `CopiedSelection`."""
        del options
        return {}

    def folder(self, table: TableName) -> str | None:
        """Returns the folder of the table below the destination's URI; None if tables are no folders."""
        del table
        return None

    def columns(self, schema: TableSchema, options: Mapping[str, Any]) -> Sequence[ColumnDescription] | None:
        """Returns the columns of the table in the destination; None if they are not known."""
        del schema, options
        return None


@dataclass(frozen=True, slots=True)
class ClassDestination(DestinationType):
    """A class that is named by its import path. It is called with its options, and with `uri=` if there is a URI."""

    def check(self, options: Mapping[str, Any]) -> None:
        """Accepts all options: the class itself refuses those that it does not take."""

    def open(self, uri: str | None, options: Mapping[str, Any], pipeline: str, worker: str) -> object:
        del pipeline, worker
        arguments = dict(options) if uri is None else {**options, "uri": uri}
        try:
            made: object = self._class()(**arguments)
        except TypeError as error:
            message = f"Destination {self.name} does not take its options: {error}."
            raise PgetlError(ErrorKind.CONFIG, message) from error
        return made

    def _class(self) -> Callable[..., Any]:
        module_name, _, attribute = self.name.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise PgetlError(ErrorKind.CONFIG, f"Destination {self.name} cannot be imported: {error}.") from error
        found: Callable[..., Any] | None = getattr(module, attribute, None)
        if not callable(found):
            message = f"Destination {self.name}: module {module_name} has no class {attribute}."
            raise PgetlError(ErrorKind.CONFIG, message)
        return found


@cache
def destination_type(name: str) -> DestinationType:
    """Returns the type of this name. Raises an error if there is none."""
    if _IMPORT_PATH.fullmatch(name):
        return ClassDestination(name)
    built_in: Mapping[str, str] = importlib.import_module(_PACKAGE).BUILT_IN
    if name in built_in:
        module, _, attribute = built_in[name].partition(":")
        return _expect_type(name, getattr(importlib.import_module(module), attribute))
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name in installed:
        try:
            return _expect_type(name, installed[name].load())
        except (ImportError, AttributeError) as error:
            raise PgetlError(ErrorKind.CONFIG, f'Destination "{name}" cannot be imported: {error}.') from error
    raise _unknown(name, [*built_in, *installed])


def _expect_type(name: str, found: object) -> DestinationType:
    if not isinstance(found, DestinationType):
        raise PgetlError(ErrorKind.CONFIG, f'The entry point of destination "{name}" is no DestinationType.')
    return found


def _unknown(name: str, known: Sequence[str]) -> Misdeclared:
    every = " or ".join(f'"{one}"' for one in known)
    remedy = f'Known are {every}; a class of your own is named "package.module:Class".'
    return Misdeclared(("type",), f'there is no destination "{name}"{suggestion(name, known)}', remedy=remedy)
