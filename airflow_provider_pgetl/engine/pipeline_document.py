"""The document of a pipeline file as a declaration: how the file's tables lie over it, and its quantities with units.

`[[table]]` stands beside `tables`, `[state] uri` is `state_uri`, and what [destination] has beside `type` and `uri` are
its options. Errors are noted with keys of the declaration, as the declaration's own are; `in_file` leads both back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from airflow_provider_pgetl.engine.config import (
    CopySpec,
    DestinationSpec,
    PipelineSpec,
    SourceSpec,
    SparkSpec,
    StreamSpec,
    TableSpec,
)
from airflow_provider_pgetl.engine.declaring import D, Key, kind_of, refuse
from airflow_provider_pgetl.engine.mistakes import STAND_IN, Mistakes
from airflow_provider_pgetl.engine.quantities import parse_duration, parse_size

_TOP = ("id", "tables", "exclude", "table", "source", "state", "destination", "spark", "copy", "stream")
_SIZES = frozenset({"range_bytes", "group_bytes", "memory"})
_DURATIONS = frozenset({"min_interval"})


def in_file(key: Key, origins: tuple[Key, ...]) -> Key:
    """A key of the declaration as the file has it."""
    match key:
        case ("tables", int(index), *inner) if index < len(origins):
            origin = origins[index]
            return origin if origin[0] == "tables" else (*origin, *inner)
        case ("state_uri",):
            return ("state", "uri")
        case ("destination", "options", *inner):
            return ("destination", *inner)
        case _:
            return key


class Reader:
    """One document, and what is wrong with it. `origins`: where in the file each of `PipelineSpec.tables` is."""

    def __init__(self, document: Mapping[str, Any], mistakes: Mistakes) -> None:
        self._mistakes = mistakes
        self._document = mistakes.named(document, _TOP)
        self.origins = _table_origins(self._document)

    def pipeline(self) -> PipelineSpec | None:
        """Not to be used where mistakes were noted."""
        for name in ("source", "destination"):
            self._mistakes.noted((), partial(_expect_section, name, self._document))
        values: dict[str, Any] = {
            "tables": self._tables(),
            "source": self._section("source", SourceSpec) or SourceSpec(STAND_IN),
            "state_uri": self._state_uri(),
            "destination": self._destination() or DestinationSpec("memory"),
            "spark": self._section("spark", SparkSpec) or SparkSpec(),
            "copy": self._section("copy", CopySpec) or CopySpec(),
            "stream": self._section("stream", StreamSpec) or StreamSpec(),
        }
        values |= {name: _tuple(self._document[name]) for name in ("id", "exclude") if name in self._document}
        return self._mistakes.built(PipelineSpec, values)

    # -- tables -------------------------------------------------------------------------------------------------------

    def _tables(self) -> tuple[TableSpec, ...]:
        names = self._list("tables", "a list", 'Write tables = ["schema.table"].')
        tables = self._list("table", "several tables of keys", "Write [[table]].")
        found = [
            self._mistakes.noted(("tables", at), partial(_named_table, name)) for at, name in enumerate(names or ())
        ]
        found += [self._table(values, at) for at, values in enumerate(tables or (), len(found))]
        if names is None or tables is None:
            found.append(None)  # that there are none is not what was wrong
        return tuple(table or TableSpec(f'"stand-in"."{at}"') for at, table in enumerate(found))

    def _list(self, name: str, what: str, remedy: str) -> list[Any] | None:
        def read() -> list[Any]:
            value = self._document.get(name, [])
            if not isinstance(value, list):
                refuse(name, f"it must be {what}, not {kind_of(value)}.", remedy=remedy)
            return value

        return self._mistakes.noted((), read)

    def _table(self, values: Any, at: int) -> TableSpec | None:
        given = self._mistakes.noted(("tables", at), lambda: _expect_keys(values, "[[table]]"))
        if given is None:
            return None
        return self._mistakes.built(TableSpec, {key: _tuple(value) for key, value in given.items()}, ("tables", at))

    # -- sections -----------------------------------------------------------------------------------------------------

    def _section(self, name: str, cls: type[D]) -> D | None:
        values = self._keys(name)
        if values is None:
            return None
        read = {}
        for key, value in self._mistakes.named(values, [one.name for one in fields(cls)], (name,)).items():
            quantity = self._mistakes.noted((name,), partial(_quantity, key, value))
            if quantity is not None:
                read[key] = quantity
        return self._mistakes.built(cls, read, (name,))

    def _state_uri(self) -> str | None:
        values = self._keys("state")
        if values is None:
            return None
        named = self._mistakes.named(values, ("uri",), ("state",))
        return self._mistakes.noted(("state",), lambda: _expect_uri(named.get("uri")))

    def _destination(self) -> DestinationSpec | None:
        values = self._keys("destination")
        if values is None:
            return None
        own = {name: values[name] for name in ("type", "uri", "existing") if name in values}
        options = {name: value for name, value in values.items() if name not in own}
        return self._mistakes.built(DestinationSpec, {**own, "options": options}, ("destination",))

    def _keys(self, name: str) -> Mapping[str, Any] | None:
        """None where the section is not there, or is none."""
        if name not in self._document:
            return None
        return self._mistakes.noted((name,), lambda: _expect_keys(self._document[name], f"[{name}]"))


# -- what the file's own form asks for --------------------------------------------------------------------------------


def _expect_section(name: str, document: Mapping[str, Any]) -> None:
    if name not in document:
        refuse(name, "it is missing.", remedy=f"Add a [{name}] with what belongs into it.")


def _expect_keys(values: Any, header: str) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        refuse((), f"it must be a table of keys, not {kind_of(values)}.", remedy=f"Write {header}.")
    return values


def _expect_uri(uri: Any) -> str:
    if uri is None:
        refuse("uri", "it is missing.", remedy="Add uri, or take [state] out: then the source holds the state.")
    if not isinstance(uri, str):
        refuse("uri", f"it must be text, not {kind_of(uri)}.")
    return uri


def _named_table(name: Any) -> TableSpec:
    if not isinstance(name, str):
        refuse((), f"it must be text, not {kind_of(name)}.", remedy='Write "schema.table", or a [[table]] apart.')
    return TableSpec(name)


def _table_origins(document: Mapping[str, Any]) -> tuple[Key, ...]:
    return tuple(
        (name, index)
        for name in ("tables", "table")
        if isinstance(document.get(name), list)
        for index in range(len(document[name]))
    )


def _quantity(name: str, value: Any) -> Any:
    """Bytes and seconds. A number without a unit is bytes where bytes are wanted, and nothing where time is."""
    if name in _SIZES and isinstance(value, str):
        return _parsed(name, value, parse_size)
    if name in _DURATIONS:
        if not isinstance(value, str):
            refuse(name, f"it must be a duration, not {kind_of(value)}.", remedy='Write text with a unit, like "10s".')
        return _parsed(name, value, parse_duration)
    return _tuple(value)


def _parsed(name: str, text: str, parse: Callable[[str], float]) -> float:
    try:
        return parse(text)
    except ValueError as error:
        refuse(name, f'"{text}" cannot be read: {error}.', remedy="Correct the pipeline file.")


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
