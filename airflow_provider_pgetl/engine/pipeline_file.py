"""The pipeline file: TOML in, `config.PipelineSpec` out, and for every complaint the line.

What a value may be is known to the declarations in `config`, and how the document lies over them to
`pipeline_document`; here is the text, and where in it each key stands. All mistakes are told at once, but for those of
TOML itself, of which only the first can be known.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from airflow_provider_pgetl.engine.config import PipelineSpec
from airflow_provider_pgetl.engine.declaring import Key, dotted
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.findings import Finding, FoundWanting
from airflow_provider_pgetl.engine.mistakes import Mistakes
from airflow_provider_pgetl.engine.pipeline_document import Reader, in_file
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.engine.toml_lines import lines_of

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
    """The pipeline of this file. Every error is a `PgetlError(CONFIG)` that begins with file and line."""
    text = _text(path)
    mistakes = Mistakes()
    reader = Reader(_parse(path, text), mistakes)
    spec = reader.pipeline()
    lines = lines_of(text)
    if mistakes.found or spec is None:
        raise _mistaken(path, lines, reader.origins, mistakes)
    return PipelineFile(path, spec, lines, reader.origins)


def _mistaken(path: Path, lines: Mapping[Key, int], origins: tuple[Key, ...], mistakes: Mistakes) -> PgetlError:
    """In the order of their lines; what is missing altogether has none, and comes last."""
    placed = [(in_file(mistakes.written(mistake.key), origins), mistake) for mistake in mistakes.found]
    placed.sort(key=lambda each: _line(lines, each[0]) or sys.maxsize)
    told = (
        Finding(f"{_place(path, lines, key)}: {dotted(key)}{mistake.complaint}", mistake.remedy, kind=ErrorKind.CONFIG)
        for key, mistake in placed
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
    """A key that is missing has no line of its own; then it is that of the table in which it is missing."""
    return next((lines[key[:length]] for length in range(len(key), 0, -1) if key[:length] in lines), None)
