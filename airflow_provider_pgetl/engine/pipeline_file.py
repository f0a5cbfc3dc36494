"""The pipeline file: TOML in, `config.PipelineSpec` out, and for every complaint the line.

What a value may be is known to the declarations in `config`; here is only what a *file* adds: how its tables lie over
the declarations (`[[table]]` beside `tables`, `[state] uri`, options beside `type` in [destination]), sizes and
durations with their units, and where in the text each key stands.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from airflow_provider_pgetl.engine import declaring
from airflow_provider_pgetl.engine.config import (
    CopySpec,
    DestinationSpec,
    PipelineSpec,
    SourceSpec,
    SparkSpec,
    StreamSpec,
    TableSpec,
)
from airflow_provider_pgetl.engine.declaring import Key, Misdeclared, blamed_on, kind_of, refuse
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.quantities import parse_duration, parse_size
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.engine.toml_lines import lines_of

_TOP = ("id", "tables", "exclude", "table", "source", "state", "destination", "spark", "copy", "stream")
_SIZES = frozenset({"range_bytes", "group_bytes", "memory"})
_DURATIONS = frozenset({"min_interval"})
_SYNTAX = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column \d+|end of document)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """A pipeline, and where in its file each thing was said."""

    path: Path
    spec: PipelineSpec
    lines: Mapping[Key, int]
    origins: tuple[Key, ...]

    def place(self, words: str | None = None, key: Key = ()) -> str:
        """``shop.toml:3`` for the declaration's key, or for the table, pattern or exclusion that is written there, or
        the pattern that matches such a table; else ``shop.toml``."""
        return _place(self.path, self.lines, _in_file(key, self.origins) if key else self._key(words))

    def _key(self, words: str | None) -> Key:
        tables = tuple(zip(self.spec.tables, self.origins, strict=True))
        for table, origin in tables:
            if words == table.name or (not table.pattern.wildcard and words == str(table.pattern.literal)):
                return origin
        if words in self.spec.exclude:
            return ("exclude", self.spec.exclude.index(words))
        schema, _, name = (words or "").partition(".")
        matching = (origin for table, origin in tables if table.pattern.matches(TableName(schema, name)))
        return next(matching, ())


def read_pipeline_file(path: Path) -> PipelineFile:
    """The pipeline of this file. Every error is a `PgetlError(CONFIG)` that begins with file and line."""
    text = _text(path)
    document = _parse(path, text)
    lines = lines_of(text)
    origins = _table_origins(document)
    try:
        spec = _pipeline(document)
    except Misdeclared as error:
        key = _in_file(error.key, origins)
        message = f"{_place(path, lines, key)}: {declaring.dotted(key)}{error.complaint}"
        raise PgetlError(ErrorKind.CONFIG, message, remedy=error.remedy) from None
    return PipelineFile(path, spec, lines, origins)


# -- the text ---------------------------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        _unreadable(path, (error.strerror or "it cannot be read").lower(), "Check its path and permissions.")
    except UnicodeDecodeError:
        _unreadable(path, "it is not UTF-8", "Save it as UTF-8.")


def _unreadable(path: Path, why: str, remedy: str) -> NoReturn:
    raise PgetlError(ErrorKind.CONFIG, f"The pipeline file {path} cannot be read: {why}.", remedy=remedy) from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _SYNTAX.fullmatch(str(error))
        what = found["what"] if found else str(error)
        line = found["line"] if found and found["line"] else text.count("\n") + 1
        message = f"{path}:{line}: this is not TOML: {what}."
        raise PgetlError(ErrorKind.CONFIG, message, remedy="Correct what stands there.") from None


def _place(path: Path, lines: Mapping[Key, int], key: Key) -> str:
    """A key that is missing has no line of its own; then it is that of the table in which it is missing."""
    for length in range(len(key), 0, -1):
        if key[:length] in lines:
            return f"{path}:{lines[key[:length]]}"
    return str(path)


# -- the file's form over the declarations' ---------------------------------------------------------------------------


def _table_origins(document: Mapping[str, Any]) -> tuple[Key, ...]:
    """Where in the file each of `PipelineSpec.tables` is."""
    return tuple(
        (name, index)
        for name in ("tables", "table")
        if isinstance(document.get(name), list)
        for index in range(len(document[name]))
    )


def _in_file(key: Key, origins: tuple[Key, ...]) -> Key:
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


def _pipeline(document: Mapping[str, Any]) -> PipelineSpec:
    declaring.check_keys(document, _TOP)
    values = {name: _tuple(document[name]) for name in ("id", "exclude") if name in document}
    for name in ("source", "destination"):
        if name not in document:
            refuse(name, "it is missing.", remedy=f"Add a [{name}] with what belongs into it.")
    return declaring.build(
        PipelineSpec,
        {
            **values,
            "tables": _tables(document),
            "source": _section(document, "source", SourceSpec),
            "state_uri": _state_uri(document),
            "destination": _destination(document),
            "spark": _section(document, "spark", SparkSpec),
            "copy": _section(document, "copy", CopySpec),
            "stream": _section(document, "stream", StreamSpec),
        },
    )


def _tables(document: Mapping[str, Any]) -> tuple[TableSpec, ...]:
    """Errors are given keys of the declaration, as the declaration's own are: `_in_file` leads both back."""
    names, tables = document.get("tables", []), document.get("table", [])
    if not isinstance(names, list):
        refuse("tables", f"it must be a list, not {kind_of(names)}.", remedy='Write tables = ["schema.table"].')
    if not isinstance(tables, list):
        refuse("table", f"it must be several tables of keys, not {kind_of(tables)}.", remedy="Write [[table]].")
    return tuple(_table(values, index, index < len(names)) for index, values in enumerate((*names, *tables)))


def _table(values: Any, index: int, by_name: bool) -> TableSpec:
    with blamed_on(("tables", index)):
        if by_name and not isinstance(values, str):
            refuse((), f"it must be text, not {kind_of(values)}.", remedy='Write "schema.table", or a [[table]] apart.')
        if by_name:
            return TableSpec(values)
        if not isinstance(values, Mapping):
            refuse((), f"it must be a table of keys, not {kind_of(values)}.", remedy="Write [[table]].")
        return declaring.build(TableSpec, {name: _tuple(value) for name, value in values.items()})


def _section(document: Mapping[str, Any], name: str, cls: type[declaring.D]) -> declaring.D:
    with blamed_on((name,)):
        return declaring.build(cls, {key: _quantity(key, value) for key, value in _keys(document, name).items()})


def _state_uri(document: Mapping[str, Any]) -> Any:
    with blamed_on(("state",)):
        values = _keys(document, "state")
        declaring.check_keys(values, ("uri",))
        if "state" in document and "uri" not in values:
            refuse("uri", "it is missing.", remedy="Add uri, or take [state] out: then the source holds the state.")
        if not isinstance(values.get("uri", ""), str):
            refuse("uri", f"it must be text, not {kind_of(values['uri'])}.")
    return values.get("uri")


def _destination(document: Mapping[str, Any]) -> DestinationSpec:
    with blamed_on(("destination",)):
        values = dict(_keys(document, "destination"))
        own: dict[str, Any] = {name: values.pop(name) for name in ("type", "uri") if name in values}
        return declaring.build(DestinationSpec, {**own, "options": values})


def _keys(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    values = document.get(name, {})
    if not isinstance(values, dict):
        refuse((), f"it must be a table of keys, not {kind_of(values)}.", remedy=f"Write [{name}].")
    return values


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
