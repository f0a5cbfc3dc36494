"""The pipeline file: reads TOML into `spec.PipelineSpec`, and gives each error its line.

The declarations in `spec` define which values are valid. `Reader` maps the document to the declarations; `toml_lines`
finds the line of each key in the text. All errors are reported at once, except those of TOML itself, of which only the
first can be found.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from airflow_provider_pgetl.engine.config.spec import (
    CopySpec,
    DestinationSpec,
    PipelineSpec,
    SourceSpec,
    SparkSpec,
    StreamSpec,
    TableSpec,
    TransformationSpec,
    TransformSpec,
)
from airflow_provider_pgetl.engine.config.toml_lines import lines_of
from airflow_provider_pgetl.engine.config.validation import (
    STAND_IN,
    D,
    Key,
    ValidationErrors,
    build,
    dotted,
    kind_of,
    refuse,
)
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Finding, FoundWanting, PgetlError
from airflow_provider_pgetl.engine.model.quantities import parse_duration, parse_size
from airflow_provider_pgetl.engine.model.tables import TableName

# ----------------------------------------------------------------------------------------------------------------------
# The document of a pipeline file as a declaration: how the file's tables map to it, and its quantities with units.
#
# `[[table]]` adds to `tables`, `[state] uri` is `state_uri`, and the keys of [destination] that are not its own
# (`type`, `uri`, `existing`) are its options. Errors are noted with keys of the declaration, as those of the
# declaration itself are; `in_file` maps these back to keys of the file.

_TOP = (
    *("id", "tables", "exclude", "table", "source", "state", "destination", "spark", "copy", "stream"),
    *("transform", "transformation"),
)
_RULE = tuple(one.name for one in fields(TransformSpec) if one.name != "options")
_SIZES = frozenset({"range_bytes", "group_bytes", "memory"})
_DURATIONS = frozenset({"min_interval"})


def in_file(key: Key, origins: tuple[Key, ...]) -> Key:
    """Returns the key of the file for a key of the declaration."""
    match key:
        case ("tables", int(index), *inner) if index < len(origins):
            origin = origins[index]
            return origin if origin[0] == "tables" else (*origin, *_of_rule(tuple(inner)))
        case ("transform", int(), *inner):
            return (*key[:2], *_without_options(tuple(inner)))
        case ("state_uri",):
            return ("state", "uri")
        case ("destination", "options", *inner):
            return ("destination", *inner)
        case _:
            return key


def _of_rule(inner: Key) -> Key:
    return (*inner[:2], *_without_options(inner[2:])) if inner[:1] == ("transform",) else inner


def _without_options(inner: Key) -> Key:
    """The options of a transformer stand beside the other keys of its rule."""
    return inner[1:] if inner[:1] == ("options",) else inner


class Reader:
    """Reads one document, and notes the errors in it. `origins`: the key in the file of each of
    `PipelineSpec.tables`."""

    def __init__(self, document: Mapping[str, Any], validation_errors: ValidationErrors) -> None:
        self._validation_errors = validation_errors
        self._document = validation_errors.named(document, _TOP)
        self.origins = _table_origins(self._document)

    def pipeline(self) -> PipelineSpec | None:
        """Returns the declaration, which must not be used where errors were noted."""
        for name in ("source", "destination"):
            self._validation_errors.noted((), partial(_expect_section, name, self._document))
        values: dict[str, Any] = {
            "tables": self._tables(),
            "source": self._section("source", SourceSpec) or SourceSpec(STAND_IN),
            "state_uri": self._state_uri(),
            "destination": self._destination() or DestinationSpec("memory"),
            "spark": self._section("spark", SparkSpec) or SparkSpec(),
            "copy": self._section("copy", CopySpec) or CopySpec(),
            "stream": self._section("stream", StreamSpec) or StreamSpec(),
            "transformation": self._section("transformation", TransformationSpec) or TransformationSpec(),
        }
        rules = self._list("transform", "several tables of keys", "Write [[transform]].")
        values["transform"] = self._rules(rules or (), ("transform",))
        values |= {name: _tuple(self._document[name]) for name in ("id", "exclude") if name in self._document}
        return self._validation_errors.built(PipelineSpec, values)

    # -- tables -------------------------------------------------------------------------------------------------------

    def _tables(self) -> tuple[TableSpec, ...]:
        names = self._list("tables", "a list", 'Write tables = ["schema.table"].')
        tables = self._list("table", "several tables of keys", "Write [[table]].")
        found = [
            self._validation_errors.noted(("tables", at), partial(_named_table, name))
            for at, name in enumerate(names or ())
        ]
        found += [self._table(values, at) for at, values in enumerate(tables or (), len(found))]
        if names is None or tables is None:
            found.append(None)  # so that no further error says that no table is named
        return tuple(table or TableSpec(f'"stand-in"."{at}"') for at, table in enumerate(found))

    def _list(self, name: str, what: str, remedy: str) -> list[Any] | None:
        def read() -> list[Any]:
            value = self._document.get(name, [])
            if not isinstance(value, list):
                refuse(name, f"it must be {what}, not {kind_of(value)}.", remedy=remedy)
            return value

        return self._validation_errors.noted((), read)

    def _table(self, values: Any, at: int) -> TableSpec | None:
        given = self._validation_errors.noted(("tables", at), lambda: _expect_keys(values, "[[table]]"))
        if given is None:
            return None
        values = {key: _tuple(value) for key, value in given.items()}
        if isinstance(values.get("transform"), tuple):
            values["transform"] = self._rules(values["transform"], ("tables", at, "transform"))
        return self._validation_errors.built(TableSpec, values, ("tables", at))

    # -- rules --------------------------------------------------------------------------------------------------------

    def _rules(self, rules: Sequence[Any], at: Key) -> tuple[TransformSpec, ...]:
        found = (self._rule(values, (*at, number)) for number, values in enumerate(rules))
        return tuple(rule for rule in found if rule is not None)

    def _rule(self, values: Any, at: Key) -> TransformSpec | None:
        given = self._validation_errors.noted(at, lambda: _expect_keys(values, "[[transform]]"))
        if given is None:
            return None
        own = {name: value for name, value in given.items() if name in _RULE}
        options = {name: value for name, value in given.items() if name not in _RULE}
        return self._validation_errors.noted(at, lambda: build(TransformSpec, {**own, "options": options}))

    # -- sections -----------------------------------------------------------------------------------------------------

    def _section(self, name: str, cls: type[D]) -> D | None:
        values = self._keys(name)
        if values is None:
            return None
        read = {}
        for key, value in self._validation_errors.named(values, [one.name for one in fields(cls)], (name,)).items():
            quantity = self._validation_errors.noted((name,), partial(_quantity, key, value))
            if quantity is not None:
                read[key] = quantity
        return self._validation_errors.built(cls, read, (name,))

    def _state_uri(self) -> str | None:
        values = self._keys("state")
        if values is None:
            return None
        named = self._validation_errors.named(values, ("uri",), ("state",))
        return self._validation_errors.noted(("state",), lambda: _expect_uri(named.get("uri")))

    def _destination(self) -> DestinationSpec | None:
        values = self._keys("destination")
        if values is None:
            return None
        own = {name: values[name] for name in ("type", "uri", "existing") if name in values}
        options = {name: value for name, value in values.items() if name not in own}
        return self._validation_errors.built(DestinationSpec, {**own, "options": options}, ("destination",))

    def _keys(self, name: str) -> Mapping[str, Any] | None:
        """Returns None where the section is missing, or is not a table of keys."""
        if name not in self._document:
            return None
        return self._validation_errors.noted((name,), lambda: _expect_keys(self._document[name], f"[{name}]"))


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
    """Returns bytes or seconds. A number without a unit means bytes where a size is expected, and is refused where a
    duration is."""
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


# -- Pipeline file. ----------------------------------------------------------------------------------------------------

_SYNTAX = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column \d+|end of document)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """A pipeline, and the lines of its file on which its keys are."""

    path: Path
    spec: PipelineSpec
    lines: Mapping[Key, int]
    origins: tuple[Key, ...]

    def place(self, words: str | None = None, key: Key = ()) -> str:
        """Returns ``shop.toml:3`` for the declaration's key, or for the table, pattern or exclusion that is written as
        `words`, or for the pattern that matches such a table; else ``shop.toml``."""
        return _place(self.path, self.lines, in_file(key, self.origins) if key else self._key(words))

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
    """Returns the pipeline of this file. Every error is a `PgetlError(CONFIG)` that names the file, and the line where
    there is one."""
    text = _text(path)
    validation_errors = ValidationErrors()
    reader = Reader(_parse(path, text), validation_errors)
    spec = reader.pipeline()
    lines = lines_of(text)
    if validation_errors.found or spec is None:
        raise _all_errors(path, lines, reader.origins, validation_errors)
    return PipelineFile(path, spec, lines, reader.origins)


def _all_errors(
    path: Path, lines: Mapping[Key, int], origins: tuple[Key, ...], validation_errors: ValidationErrors
) -> PgetlError:
    """Errors are in the order of their lines; an error about a part that is missing altogether has none, and comes
    last."""
    placed = [(in_file(validation_errors.written(error.key), origins), error) for error in validation_errors.found]
    placed.sort(key=lambda each: _line(lines, each[0]) or sys.maxsize)
    told = (
        Finding(f"{_place(path, lines, key)}: {dotted(key)}{error.complaint}", error.remedy, kind=ErrorKind.CONFIG)
        for key, error in placed
    )
    return FoundWanting(tuple(told))


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
    line = _line(lines, key)
    return str(path) if line is None else f"{path}:{line}"


def _line(lines: Mapping[Key, int], key: Key) -> int | None:
    """Returns the line of the key. A missing key has no line of its own; its line is that of the table in which it is
    missing."""
    return next((lines[key[:length]] for length in range(len(key), 0, -1) if key[:length] in lines), None)
