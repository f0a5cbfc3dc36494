"""Tables as the source declares them: names, types, columns, and the identity of rows.

Everything here is plain data: frozen, comparable, and convertible to JSON and back without loss, because a table's
schema is stored with each of its versions. Nothing here connects to a server.
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
    """Returns the name as SQL, always quoted: keywords, upper case and quotes need no special case."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """`schema.name`: the key of a table in stores, destinations and reports."""

    schema: str
    name: str

    @property
    def sql(self) -> str:
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.name)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class PgType:
    """A Postgres type, by the name that it has on any server (schema-qualified unless it is in pg_catalog).

    `inner` is the element type of an array, the base type of a domain, or the subtype of a (multi)range; `fields` are
    the columns of a composite type as (name, type); `labels` are those of an enum, in order. `numbers` are the numbers
    under which the source stores these fields or labels: one that was created again under the name of another has a
    different number; empty where they are not known. `extension` is the extension that owns the type.

    `since` is the major version of PostgreSQL that added values whose binary form earlier versions read as other
    values, if the source is of such a version; else 0. `sendable` is false where the type, or a type that it is made
    of, has no binary output function; such a value is sent as text. `sql_type` is the spelling with a modifier where
    the type is used inside another: ``numeric(10,2)`` below a domain.
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
        """The base type of a domain, also of a domain over a domain; any other type is its own root."""
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
        """Whether values name or number objects of their own server, such as tables and roles, or can be created by
        that server alone. On another server only their text is of use."""
        if self.built_in and self.kind == "base":
            return self.name in _LOCAL
        return any(part.local for part in self._parts)

    @property
    def read_since(self) -> int:
        """The first major version whose servers read the binary form of all values of the type correctly; 0 if all
        do."""
        return max([self.since, *(part.read_since for part in self._parts)])

    @property
    def _parts(self) -> tuple[PgType, ...]:
        return (*((self.inner,) if self.inner else ()), *(field for _, field in self.fields))

    @property
    def universal(self) -> bool:
        """Whether the binary form means the same on every server, whatever its types and its version."""
        return self.root.built_in and self.portable and not self.read_since

    @property
    def built_in(self) -> bool:
        """Whether the OID was assigned by Postgres itself: OIDs below 16384 are equal on every server."""
        return self.oid < FIRST_OF_USERS


@dataclass(frozen=True, slots=True)
class Column:
    """One published column. `sql_type` is the result of format_type(), with its modifier: ``numeric(10,2)``. `number`
    is its attribute number, which distinguishes it from a dropped column of the same name; 0 where it is not known.
    `altered` is the transaction that last altered it. `missing` is the text of the value of rows that were written
    before the column was added; None is NULL."""

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
    missing: str | None = None

    @property
    def sql(self) -> str:
        return quote_identifier(self.name)


@dataclass(frozen=True, slots=True)
class GeneratedColumn:
    """A column that the source computes and does not send, with the SQL that computes it from the others. `definition`
    is the OID under which the source stores that SQL; 0 where it is not known. `locale` is that of the source's
    database, where the expression compares or folds text by it; empty where it does not."""

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

    `key` names the columns by which a destination identifies a row: those of the replica identity, or, under replica
    identity full, those of the primary key if there is one. Empty means keyless: rows are identified by all their
    values. `relation` is the OID of the table in pgoutput's messages. `generated` are the columns that pgoutput leaves
    out because the source computes them from the others. `files` are the numbers of the files that held the rows, by
    the OIDs of the leaves; `attachments`, by the same OIDs, show whether a partition was attached again. `sender` is
    the row of pg_publication by which the table is sent, None where it is not known. `as_text`: all values are sent as
    text, whatever their types.
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
    as_text: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def key_indexes(self) -> tuple[int, ...]:
        names = self.names
        return tuple(names.index(name) for name in self.key)

    @property
    def portable(self) -> bool:
        """Whether every column may be sent in binary form between servers."""
        return not self.as_text and all(column.type.portable for column in self.columns)

    @property
    def universal(self) -> bool:
        """Whether every column may be sent in binary form to any server."""
        return not self.as_text and all(column.type.universal for column in self.columns)

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
    """Returns one object for all columns of a type: thousands of tables share a few types."""
    return read


# -- Names of tables as people write them: in pipeline files, on the command line, in a DAG. ---------------------------
#
# ``schema.table``, each segment taken literally, upper case as it is written; ``*`` matches any characters within its
# segment. A segment in double quotes is literal throughout: dots, stars and (doubled) quotes in it stand for
# themselves. The first dot outside quotes separates the schema from the table, so a dot in the name of a table needs
# no quotes.
#
# `str(TableName)` without a star or a quote reads back as that table; `written` returns a text that does so for every
# table.

_TWO_SEGMENTS = re.compile(r'("(?:[^"]|"")+"|[^."][^.]*)\.("(?:[^"]|"")+"|[^"].*)', re.DOTALL)
_PLAIN = re.compile(r'[^".*\s]+')


@dataclass(frozen=True)
class Pattern:
    """A pattern of table names: one name, or several at once. Made by `parse`."""

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


def matches(pattern: str, name: str) -> bool:
    """Whether the name is that of the pattern, in which ``*`` stands for any characters."""
    return _expression(pattern).fullmatch(name) is not None if "*" in pattern else pattern == name


def parse_table(text: str) -> TableName:
    """Returns the one table that the text names. Raises `PgetlError` if the text may name several."""
    pattern = Pattern.parse(text)
    if pattern.wildcard:
        message = f'"{text}" may name several tables, and one is wanted.'
        raise PgetlError(ErrorKind.CONFIG, message, remedy="Name one; a star that is part of a name goes into quotes.")
    return pattern.literal


def written(table: TableName) -> str:
    """Returns the table as `parse_table` reads it, quoted only where that is needed."""
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


# -- The copied selection: which part of a table is replicated, to which table, and in what form. ----------------------
#
# A destination's table holds what was selected when it was copied. If the selection changes later, no stream can bring
# what was left out before, nor remove what is no longer wanted: the table has to be copied again. So the selection of
# the copy is stored with the table, and compared with the one that is declared now.


@dataclass(frozen=True, slots=True)
class CopiedSelection:
    """`columns`: those of the publication's column list, whose order has no meaning; None without a column list.
    `where`: the row filter as the server spells it, so that the same filter in other words compares equal. `form`: what
    the destination makes of rows, by the destination's own keys; empty for a destination without such options.
    `transform`: the fingerprint of the rules for the table and of their keys; empty without rules. `uses`: the columns
    of these rules, with the transformers, for people."""

    columns: frozenset[str] | None
    where: str | None
    insert_only: bool
    destination: TableName
    form: Mapping[str, str] = field(default_factory=dict)
    transform: str = ""
    uses: Mapping[str, str] = field(default_factory=dict)

    def differences(self, other: CopiedSelection) -> tuple[str, ...]:
        """Returns the keys of the declaration that differ. Of the form only keys that both have are compared: whether
        the table is in a destination of another kind is found from the destination's positions."""
        keys = ("columns", "where", "insert_only", "destination", "transform")
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
            "transform": self.transform,
            "uses": dict(self.uses),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CopiedSelection:
        columns = None if data["columns"] is None else frozenset(data["columns"])
        place, form = TableName(*data["destination"]), data.get("form", {})
        transform, uses = data.get("transform", ""), data.get("uses", {})
        return cls(columns, data["where"], data["insert_only"], place, form, transform, uses)
