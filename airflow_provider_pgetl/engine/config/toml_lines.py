"""The line on which each key of a TOML document, and each element of a list, begins.

`tomllib` returns what a document holds but not where. This scanner reads a text *that tomllib has accepted*, and so can
be much smaller than a parser: it checks nothing, and only keeps track of its position. Paths are those of the parsed
document: ``("table", 1, "columns", 0)`` is the first of the columns of the second [[table]].
"""

from __future__ import annotations

import re
import tomllib

KeyPath = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}'  # up to two quotes may stand before the closing three
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\]|\\.)*"'
    r"|'[^']*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]+")


def lines_of(text: str) -> dict[KeyPath, int]:
    """Returns the line of each key. The first line is 1. The line of a table is that of its header, or else of the
    first key that names it."""
    return _Scanner(text).scan()


class _Scanner:
    """A position in the text, and the lines found before it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.lines: dict[KeyPath, int] = {}
        self.counts: dict[KeyPath, int] = {}  # how many [[headers]] each array of tables has had

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self.at < len(self.text):
            if self._peek() == "[":
                table = self._header()
            else:
                self._assignment(table)
            self._skip(_BLANK)
        return self.lines

    def _header(self) -> KeyPath:
        array = self.text.startswith("[[", self.at)
        self._step(2 if array else 1)
        line = self.line
        keys = self._keys()
        self._step(2 if array else 1)
        if array:
            return self._array_element(keys, line)
        path = self._open((), keys, line)
        self.lines[path] = line
        return path

    def _array_element(self, keys: KeyPath, line: int) -> KeyPath:
        path = self._open((), keys[:-1], line) + keys[-1:]
        number = self.counts.get(path, 0)
        self.counts[path] = number + 1
        self.lines.setdefault(path, line)
        self.lines[*path, number] = line
        return (*path, number)

    def _open(self, table: KeyPath, keys: KeyPath, line: int) -> KeyPath:
        """Follows the keys down. A key of an array of tables leads to the last element of the array."""
        path = table
        for key in keys:
            path = (*path, key)
            self.lines.setdefault(path, line)
            if path in self.counts:
                path = (*path, self.counts[path] - 1)
        return path

    def _assignment(self, table: KeyPath) -> None:
        line = self.line
        path = self._open(table, self._keys(), line)
        self._skip(_SPACE)
        self._step(1)  # =
        self._skip(_SPACE)
        self._value(path)

    def _keys(self) -> KeyPath:
        keys: list[str] = []
        while True:
            self._skip(_SPACE)
            keys.append(self._key())
            self._skip(_SPACE)
            if self._peek() != ".":
                return tuple(keys)
            self._step(1)

    def _key(self) -> str:
        if self._peek() in "\"'":
            quoted = self._skip(_STRING)
            return next(iter(tomllib.loads(f"{quoted} = 0")))
        return self._skip(_BARE_KEY)

    def _value(self, path: KeyPath) -> None:
        first = self._peek()
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        else:
            self._skip(_STRING if first in "\"'" else _SCALAR)

    def _array(self, path: KeyPath) -> None:
        number = 0
        self._step(1)
        self._skip(_BLANK)
        while self._peek() != "]":
            self.lines[*path, number] = self.line
            self._value((*path, number))
            number += 1
            self._skip_comma()
        self._step(1)

    def _inline_table(self, path: KeyPath) -> None:
        self._step(1)
        self._skip(_BLANK)
        while self._peek() != "}":
            self._assignment(path)
            self._skip_comma()
        self._step(1)

    def _skip_comma(self) -> None:
        self._skip(_BLANK)
        if self._peek() == ",":
            self._step(1)
            self._skip(_BLANK)

    def _peek(self) -> str:
        return self.text[self.at]

    def _step(self, length: int) -> None:
        self.at += length

    def _skip(self, expression: re.Pattern[str]) -> str:
        match = expression.match(self.text, self.at)
        found = match.group() if match else ""
        self.line += found.count("\n")
        self.at += len(found)
        return found
