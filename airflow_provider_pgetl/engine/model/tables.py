"""Tables as the source declares them: names, types, columns, the identity by which rows are known.

Everything here is plain data: frozen, comparable, and convertible to JSON and back without loss, because a table's
schema is stored with each of its versions. Nothing here talks to a server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError

TypeKind = Literal["base", "array", "enum", "domain", "composite", "range", "multirange"]
Identity = Literal["default", "index", "full", "nothing"]

FIRST_OF_USERS = 16384  # OIDs below it are the same on every server

_LOCAL = frozenset(
    {
        *("regclass", "regcollation", "regconfig", "regdatabase", "regdictionary", "regnamespace", "regoper"),
        *("regoperator", "regproc", "regprocedure", "regrole", "regtype", "aclitem", "gtsvector", "pg_node_tree"),
        *("pg_ndistinct", "pg_dependencies", "pg_mcv_list", "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"),
    }
)


def quote_identifier(name: str) -> str:
    """A name as SQL, always quoted: keywords, upper case and quotes need no special case."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """`schema.name`; the key under which a table is known in stores, destinations and reports."""

    schema: str
    name: str

    @property
    def sql(self) -> str:
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.name)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class PgType:
    """A Postgres type, by the name it has on any server (schema-qualified unless it is in pg_catalog).

    `inner` is the element of an array, the base of a domain, the subtype of a (multi)range; `fields` are a
    composite's columns as (name, type); `labels` an enum's, in order. `numbers` are those under which the source keeps
    these fields or labels: one that was made anew under the name of another has another; empty where they are not
    known. `extension` names the extension that owns it. `since` is the major version of PostgreSQL that gave it values
    whose binary form earlier ones take for other values, if the source has them; else 0.
    `sendable` is false where the type, or what it is made of, has no binary output function; such a value travels as
    text.
    `sql_type` is the spelling with a modifier where the type is used inside another: ``numeric(10,2)`` below a domain.
    """

    oid: int
    name: str
    kind: TypeKind = "base"
    inner: PgType | None = None
    fields: tuple[tuple[str, PgType], ...] = ()
    labels: tuple[str, ...] = ()
    extension: str | None = None
    sendable: bool = True
    sql_type: str | None = None
    numbers: tuple[int, ...] = ()
    since: int = 0

    @property
    def root(self) -> PgType:
        """The type whose values a domain really holds; any other type is its own root."""
        return self.inner.root if self.kind == "domain" and self.inner else self

    @property
    def portable(self) -> bool:
        """Whether the binary form means the same on another server.

        The binary forms of arrays and composites carry type OIDs, which are only universal for built-in types.
        """
        root = self.root
        if root.kind == "composite" or not root.sendable or root.local:
            return False
        if root.kind == "array":
            return root.inner is not None and root.inner.built_in and root.inner.kind != "composite"
        return root.inner.portable if root.kind in ("range", "multirange") and root.inner else True

    @property
    def local(self) -> bool:
        """Whether values name or number things of their own server, such as tables and roles, or are made by it alone.
        Elsewhere they are nothing but their text."""
        if self.built_in and self.kind == "base":
            return self.name in _LOCAL
        return any(part.local for part in self._parts)

    @property
    def read_since(self) -> int:
        """The major version from which on servers take the binary form of all its values for what they are."""
        return max([self.since, *(part.read_since for part in self._parts)])

    @property
    def _parts(self) -> tuple[PgType, ...]:
        return (*((self.inner,) if self.inner else ()), *(field for _, field in self.fields))

    @property
    def universal(self) -> bool:
        """Whether the binary form means the same on every server, whatever types that has, and whatever version."""
        return self.root.built_in and self.portable and not self.read_since

    @property
    def built_in(self) -> bool:
        """OIDs below 16384 are assigned by Postgres itself and equal on every server."""
        return self.oid < FIRST_OF_USERS


@dataclass(frozen=True, slots=True)
class Column:
    """One published column. `sql_type` is what format_type() says, with its modifier: ``numeric(10,2)``. `number` is
    its attribute number, which tells it from one of the same name that was dropped; 0 where it is not known. `altered`
    is the transaction that last altered it."""

    name: str
    type: PgType
    sql_type: str
    modifier: int = -1
    not_null: bool = False
    generated: bool = False
    identity: Literal["", "a", "d"] = ""
    comment: str | None = None
    number: int = 0
    altered: int = 0

    @property
    def sql(self) -> str:
        return quote_identifier(self.name)


@dataclass(frozen=True, slots=True)
class GeneratedColumn:
    """A column that the source computes and does not send, with the SQL that computes it from the others. `definition`
    is the OID under which the source stores that; 0 where it is not known. `locale` is that of the source's database,
    where texts are compared or folded by it; empty where they are not."""

    column: Column
    expression: str
    definition: int = 0
    locale: str = ""


class Sender(NamedTuple):
    """A row of pg_publication: its OID, the transaction that wrote it, and the OID of its owner."""

    publication: int
    xmin: int
    owner: int


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One version of a published table: exactly the columns that the publication sends, in their order.

    `key` names the columns by which a destination knows a row: those of the replica identity, or, under replica
    identity full, those of the primary key if there is one. Empty means keyless: rows are known by all their values.
    `relation` is the OID under which pgoutput speaks of the table. `generated` are the columns that it leaves out
    because the source computes them from the others. `files` are the numbers of the files that held the rows, by the
    OIDs of the leaves; `attachments` tell by the same OIDs whether a partition was attached again. `sender` is the row
    of pg_publication by which the table is sent, None where it is not known.
    """

    table: TableName
    relation: int
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    identity: Identity = "default"
    comment: str | None = None
    generated: tuple[GeneratedColumn, ...] = ()
    files: tuple[tuple[int, int], ...] = ()
    attachments: tuple[tuple[int, int], ...] = ()
    sender: Sender | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def key_indexes(self) -> tuple[int, ...]:
        names = self.names
        return tuple(names.index(name) for name in self.key)

    @property
    def portable(self) -> bool:
        """Whether every column may travel in binary form between servers."""
        return all(column.type.portable for column in self.columns)

    @property
    def universal(self) -> bool:
        """Whether every column may travel in binary form to any server."""
        return all(column.type.universal for column in self.columns)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableSchema:
        return cls(
            **{
                **data,
                "table": TableName(**data["table"]),
                "columns": tuple(_column(column) for column in data["columns"]),
                "key": tuple(data["key"]),
                "files": tuple((oid, file) for oid, file in data.get("files", ())),
                "attachments": tuple((oid, number) for oid, number in data.get("attachments", ())),
                "sender": Sender(*data["sender"]) if data.get("sender") else None,
                "generated": tuple(
                    GeneratedColumn(**{**one, "column": _column(one["column"])}) for one in data.get("generated", ())
                ),
            }
        )


def _column(data: Mapping[str, Any]) -> Column:
    return Column(**{**data, "type": _type(data["type"])})


def _type(data: Mapping[str, Any]) -> PgType:
    inner = data["inner"]
    return _shared(
        PgType(
            **{
                **data,
                "inner": _type(inner) if inner else None,
                "fields": tuple((name, _type(field)) for name, field in data["fields"]),
                "labels": tuple(data["labels"]),
                "numbers": tuple(data.get("numbers", ())),
            }
        )
    )


@lru_cache(maxsize=1024)
def _shared(read: PgType) -> PgType:
    """One object for all columns of a type: thousands of tables have the same few."""
    return read


# -- How tables are named by people: in pipeline files, on the command line, in a DAG. ---------------------------------
#
# ``schema.table``, each segment taken literally, upper case as it is written; ``*`` matches any characters within its
# segment. A segment in double quotes is literal throughout: dots, stars and (doubled) quotes in it mean themselves.
# The first dot outside quotes parts schema from table, so that a dot in an unquoted table name needs no care.
#
# Every `str(TableName)` without a star or a quote reads back as that table; `written` does for all.

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


# -- On what terms a table is replicated: which of it, where to, and what it is there. ---------------------------------
#
# A destination's table holds what was chosen when it was copied. If something else is chosen later, no stream can bring
# what was left out before, nor take away what is not wanted any more: the table has to be copied anew. So the terms of
# the copy are stored with the table, and held against those declared now.


@dataclass(frozen=True, slots=True)
class CopiedSelection:
    """`columns`: those of the publication's column list, whose order means nothing, None without one. `where`: the row
    filter as the server spells it, so that the same filter in other words is the same. `form`: what the destination
    makes of rows, by its own keys; of one that knows no such choice it is empty."""

    columns: frozenset[str] | None
    where: str | None
    insert_only: bool
    destination: TableName
    form: Mapping[str, str] = field(default_factory=dict)

    def differences(self, other: CopiedSelection) -> tuple[str, ...]:
        """What differs, by the keys of the declaration. Of the form what both know: whether a destination of another
        kind has the table, its positions tell."""
        keys = ("columns", "where", "insert_only", "destination")
        changed = [key for key in keys if getattr(self, key) != getattr(other, key)]
        reformed = [key for key in self.form if self.form[key] != other.form.get(key, self.form[key])]
        return (*changed, *reformed)

    def as_json(self) -> dict[str, Any]:
        return {
            "columns": None if self.columns is None else sorted(self.columns),
            "where": self.where,
            "insert_only": self.insert_only,
            "destination": [self.destination.schema, self.destination.name],
            "form": dict(self.form),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CopiedSelection:
        columns = None if data["columns"] is None else frozenset(data["columns"])
        return cls(columns, data["where"], data["insert_only"], TableName(*data["destination"]), data.get("form", {}))
