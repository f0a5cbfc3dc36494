"""How tables are named by people: in pipeline files, on the command line, in a DAG.

``schema.table``, each segment taken literally, upper case as it is written; ``*`` matches any characters within its
segment. A segment in double quotes is literal throughout: dots, stars and (doubled) quotes in it mean themselves.
The first dot outside quotes parts schema from table, so that a dot in an unquoted table name needs no care.

Every `str(TableName)` without a star or a quote reads back as that table; `written` does for all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.tables import TableName, quote_identifier

_TWO_SEGMENTS = re.compile(r'("(?:[^"]|"")+"|[^."][^.]*)\.("(?:[^"]|"")+"|[^"].*)', re.DOTALL)
_PLAIN = re.compile(r'[^".*\s]+')


@dataclass(frozen=True)
class Pattern:
    """A name, or several at once. Made by `parse`."""

    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> Pattern:
        found = _TWO_SEGMENTS.fullmatch(text)
        if found is None:
            raise PgetlError(ErrorKind.CONFIG, f'"{text}" names no table.', remedy=_advice(text))
        return cls(*found.groups())

    @property
    def wildcard(self) -> bool:
        return any("*" in segment and not _quoted(segment) for segment in (self.schema, self.table))

    @property
    def literal(self) -> TableName:
        """The one table that a pattern without a star names."""
        return TableName(_unquote(self.schema), _unquote(self.table))

    def matches(self, name: TableName) -> bool:
        schema, table = self._expressions
        return bool(schema.fullmatch(name.schema) and table.fullmatch(name.name))

    @cached_property
    def _expressions(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        return _expression(self.schema), _expression(self.table)


def parse_table(text: str) -> TableName:
    """Exactly one table."""
    pattern = Pattern.parse(text)
    if pattern.wildcard:
        message = f'"{text}" may name several tables, and one is wanted.'
        raise PgetlError(ErrorKind.CONFIG, message, remedy="Name one; a star that is part of a name goes into quotes.")
    return pattern.literal


def written(table: TableName) -> str:
    """The table as `parse_table` reads it, quoted only where that is needed."""
    return f"{_written(table.schema)}.{_written(table.name)}"


def _written(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quote_identifier(name)


def _expression(segment: str) -> re.Pattern[str]:
    if _quoted(segment):
        return re.compile(re.escape(_unquote(segment)))
    return re.compile(".*".join(re.escape(part) for part in segment.split("*")), re.DOTALL)


def _quoted(segment: str) -> bool:
    return segment.startswith('"')


def _unquote(segment: str) -> str:
    return segment[1:-1].replace('""', '"') if _quoted(segment) else segment


def _advice(text: str) -> str:
    if text and "." not in text and '"' not in text:
        return f"Name the schema as well, for instance public.{text}."
    return "Write schema.table; a name with a dot or a quote in the schema goes into double quotes."
