"""The declaration of a pipeline: frozen, validated, serialisable, and free of secrets.

Connections are *references* (`env:NAME`, `file:PATH`, or a URI without a password); `secrets.resolve` turns them into
URIs at run time, in the process that needs them. The TOML file, the DAG and the Spark job all use this one form.

A declaration that exists is valid: each checks itself when it is made, and raises `validation.Misdeclared`, which names
the key. What can only be checked at the source (whether a table exists, whether a filter is allowed) is left to the
preflight.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from airflow_provider_pgetl.engine.config import validation
from airflow_provider_pgetl.engine.config.destination_types import DestinationType, destination_type
from airflow_provider_pgetl.engine.config.secrets import refuse_literal_secret
from airflow_provider_pgetl.engine.config.transformers import Transformer, transformer
from airflow_provider_pgetl.engine.config.validation import Key, refuse
from airflow_provider_pgetl.engine.model.tables import Pattern, TableName, matches, parse_table

OnSlotLost = Literal["error", "resync"]
Existing = Literal["error", "replace"]
OnError = Literal["error", "null"]
Mode = Literal["listed", "strict"]

# The longest slot name is pgetl_<id>_<instance>_c<attempt>, and Postgres keeps 63 bytes of a name.
_ID = re.compile(r"[a-z0-9_]{1,24}")
_NAME_BYTES = 63
_BLOCK = 8192
_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:.+", re.DOTALL)
_SECRET_OPTION = re.compile(
    r"passw|passphrase|secret|token|(api|access|account|private)_?key|credential", re.IGNORECASE
)
_INSTEAD = "Write env:NAME or file:PATH instead, or leave the password to PGPASSWORD or the password file."


@dataclass(frozen=True, slots=True)
class TransformSpec:
    """A rule: the columns that a transformer replaces on their way. `table` and `column` are patterns, in which `*`
    matches any characters. `use` is the name of the transformer, or `package.module:Class`, and `options` are its own.

    `key` refers to the secret of keyed transformers, by default that of `[transformation]`. `on_error = "null"` writes
    NULL where a value cannot be transformed. `allow_uniqueness_loss` lets a column of a unique index get values that
    are not unique.
    """

    column: str
    use: str
    table: str = "*.*"
    options: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    on_error: OnError = "error"
    allow_uniqueness_loss: bool = False

    def __post_init__(self) -> None:
        validation.check_types(self)
        _pattern(self.table, ("table",))
        if not self.column:
            refuse("column", "a column's name is empty.")
        object.__setattr__(self, "options", validation.plain(self.options, ("options",)))
        self._check_transformer()
        check_key(self.key)

    def _check_transformer(self) -> None:
        try:
            transformer(self.use, self.options)
        except validation.Misdeclared as error:
            at = error.key if error.key[:1] == ("use",) else ("options", *error.key)
            raise validation.Misdeclared(at, error.complaint, remedy=error.remedy) from None

    @property
    def transformer(self) -> Transformer:
        return transformer(self.use, self.options)

    def covers(self, table: TableName) -> bool:
        return Pattern.parse(self.table).matches(table)

    def applies(self, column: str) -> bool:
        return matches(self.column, column)


@dataclass(frozen=True, slots=True)
class TransformationSpec:
    """What holds for all rules. `mode`: with `"strict"` every column of every table needs a rule, `keep` if it may pass
    as it is. `key` refers to the secret of the transformers."""

    mode: Mode = "listed"
    key: str | None = None

    def __post_init__(self) -> None:
        validation.check_types(self)
        check_key(self.key)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table, or a pattern of tables (`schema.table`, where `*` matches within a segment). `transform` are rules for
    its columns; their `table` has no meaning."""

    name: str
    columns: tuple[str, ...] = ()
    where: str | None = None
    insert_only: bool = False
    destination: str | None = None
    existing: Existing | None = None
    transform: tuple[TransformSpec, ...] = ()

    def __post_init__(self) -> None:
        validation.check_types(self)
        pattern = _pattern(self.name, ("name",))
        _check_columns(self.columns)
        if self.where is not None and not self.where.strip():
            refuse("where", "it is empty; leave it out to replicate every row.")
        if self.destination is not None:
            with validation.blamed_on(("destination",)):
                parse_table(self.destination)
            if pattern.wildcard:
                refuse("destination", f'it names one table, but "{self.name}" may match several.')

    @property
    def pattern(self) -> Pattern:
        return Pattern.parse(self.name)


@dataclass(frozen=True, slots=True)
class SourceSpec:
    uri: str
    publication: str = ""
    manage_publication: bool = True
    on_slot_lost: OnSlotLost = "error"
    failover: bool = False

    def __post_init__(self) -> None:
        validation.check_types(self)
        check_reference(self.uri, ("uri",))
        # Beside a managed publication there is another, called <publication>_inserts.
        longest = _NAME_BYTES - len("_inserts") if self.manage_publication else _NAME_BYTES
        if len(self.publication.encode()) > longest:
            refuse("publication", f"it is longer than {longest} bytes; Postgres keeps {_NAME_BYTES} of a name.")


@dataclass(frozen=True, slots=True)
class DestinationSpec:
    """`type` is the name of a destination, or `package.module:Class` (`destination_types`); `options` are its own.
    `existing`: what happens to tables with rows that the pipeline did not write."""

    type: str
    uri: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    existing: Existing = "error"

    def __post_init__(self) -> None:
        validation.check_types(self)
        kind = self.kind
        object.__setattr__(self, "options", validation.plain(self.options, ("options",)))
        with validation.blamed_on(("options",)):
            kind.check(self.options)
        for key, value in _leaves(self.options, ("options",)):
            _check_no_secret(key, value)
        if self.uri is not None:
            object.__setattr__(self, "uri", kind.read_uri(self.uri))
            check_reference(self.uri, ("uri",))
        elif kind.needs_uri is not None:
            refuse("uri", f"it is missing; {kind.needs_uri}.", remedy='Add uri = "env:NAME" to [destination].')

    @property
    def kind(self) -> DestinationType:
        return destination_type(self.type)

    @property
    def lands(self) -> bool:
        """Whether changes land beside the tables, to be merged into them by a separate task."""
        return self.kind.lands(self.options)

    @property
    def computes(self) -> bool:
        """Whether tables that are created in the destination compute the columns that the source generates and does not
        send."""
        return self.kind.computes

    @property
    def form(self) -> Mapping[str, str]:
        """The options that decide what a copy makes of a table; see `CopiedSelection`."""
        return self.kind.form(self.options)


@dataclass(frozen=True, slots=True)
class SparkSpec:
    master: str = "local[*]"
    submit: str = ""

    def __post_init__(self) -> None:
        validation.check_types(self)
        if not self.master.strip():
            refuse("master", 'it is empty; leave it out for "local[*]".')
        try:
            shlex.split(self.submit)
        except ValueError as error:
            complaint = f"it cannot be read as a shell would: {str(error).lower()}."
            refuse(
                "submit", complaint, remedy="Close every quote; a quote that is meant itself has a backslash before."
            )


@dataclass(frozen=True, slots=True)
class CopySpec:
    table_workers: int = 2
    range_bytes: int = 64 << 20
    group_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        validation.check_types(self)
        _check_least(self.table_workers, 1, "table_workers", "1")
        for name in ("range_bytes", "group_bytes"):
            _check_least(getattr(self, name), _BLOCK, name, "8KiB, one block of a table")
            validation.check_size(getattr(self, name), name)


@dataclass(frozen=True, slots=True)
class StreamSpec:
    memory: int = 256 << 20
    min_interval: float | None = None

    def __post_init__(self) -> None:
        validation.check_types(self)
        _check_least(self.memory, 1 << 20, "memory", "1MiB")
        validation.check_size(self.memory, "memory")
        if self.min_interval is not None:
            if not self.min_interval >= 0:
                refuse("min_interval", "it must be zero or more seconds.")
            validation.check_duration(self.min_interval, "min_interval")


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """One pipeline: its source, its destination, and its tables.

    `owner` is the name under which the pipeline is declared in every run, None if it is declared under no name
    (`prepare.lifecycle`); `adopt` is the owner from whom it takes the pipeline over.
    """

    id: str
    tables: tuple[TableSpec, ...]
    source: SourceSpec
    destination: DestinationSpec
    exclude: tuple[str, ...] = ()
    state_uri: str | None = None
    spark: SparkSpec = field(default_factory=SparkSpec)
    copy: CopySpec = field(default_factory=CopySpec)
    stream: StreamSpec = field(default_factory=StreamSpec)
    owner: str | None = None
    adopt: str | None = None
    transform: tuple[TransformSpec, ...] = ()
    transformation: TransformationSpec = field(default_factory=TransformationSpec)

    def __post_init__(self) -> None:
        validation.check_types(self)
        check_id(self.id)
        _check_tables(self.tables)
        self._check_keys()
        for index, text in enumerate(self.exclude):
            _pattern(text, ("exclude", index))
        if self.state_uri is not None:
            check_reference(self.state_uri, ("state_uri",))

    def _check_keys(self) -> None:
        """Raises an error if a keyed transformer has no key."""
        keyless: list[tuple[Key, TransformSpec]] = [(("transform", at), one) for at, one in enumerate(self.transform)]
        for at, table in enumerate(self.tables):
            keyless += [(("tables", at, "transform", number), rule) for number, rule in enumerate(table.transform)]
        for key, rule in keyless:
            if self.key_of(rule) is None and rule.transformer.is_keyed:
                complaint = f'"{rule.use}" needs a key, without which its output could be guessed.'
                refuse((*key, "key"), complaint, remedy='Add key = "env:NAME" to [transformation].')

    def key_of(self, rule: TransformSpec) -> str | None:
        """Returns the reference to the key of a rule."""
        return rule.key or self.transformation.key

    @property
    def rules(self) -> tuple[TransformSpec, ...]:
        """All rules in their order: those of the tables, then the others. The first that covers a column holds."""
        own = [replace(rule, table=table.name) for table in self.tables for rule in table.transform]
        return (*own, *self.transform)

    @property
    def transform_keys(self) -> frozenset[str]:
        """The references to all keys that rules use."""
        used = (self.key_of(rule) for rule in self.rules)
        return frozenset(reference for reference in used if reference is not None)

    @property
    def transforms(self) -> bool:
        """Whether values may be transformed on their way, or must be allowed to pass."""
        return bool(self.rules) or self.transformation.mode == "strict"

    @property
    def publication(self) -> str:
        return self.source.publication or f"pgetl_{self.id}"

    @property
    def state(self) -> str:
        return self.state_uri or self.source.uri

    @property
    def references(self) -> Mapping[Key, str]:
        """The references of all connections, by their keys in the declaration."""
        named: dict[Key, str | None] = {
            ("source", "uri"): self.source.uri,
            ("state_uri",): self.state_uri,
            ("destination", "uri"): self.destination.uri,
        }
        return {key: reference for key, reference in named.items() if reference is not None}

    @property
    def state_key(self) -> Key:
        """The key of the reference to the state database."""
        return ("source", "uri") if self.state_uri is None else ("state_uri",)

    def replaces(self, table: TableSpec) -> bool:
        """Whether the table's copy may replace rows that the pipeline did not write."""
        return (table.existing or self.destination.existing) == "replace"

    def as_json(self) -> dict[str, Any]:
        """Returns the form in which Spark jobs and workers receive the declaration."""
        return validation.as_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PipelineSpec:
        return validation.from_json(cls, data)


# -- checks -----------------------------------------------------------------------------------------------------------


def check_id(text: str) -> None:
    """Raises an error unless the id can be part of the names of the publication and the slots."""
    if _ID.fullmatch(text):
        return
    remedy = "Use lower case letters, digits and underscores, at most 24 of them."
    if len(text) > 24:
        refuse("id", f'"{text}" has {len(text)} characters; names of slots leave room for 24.', remedy=remedy)
    refuse("id", f'"{text}" cannot be part of a slot\'s name.', remedy=remedy)


def check_reference(text: str, key: Key) -> None:
    """Raises an error unless the text is a reference, or a URI without a password. The text is never quoted: it may
    contain one."""
    if text.startswith(("env:", "file:")):
        if not _REFERENCE.fullmatch(text):
            refuse(key, "it names no variable or file.", remedy="Write env:NAME or file:PATH.")
        return
    if not text.strip():
        refuse(key, "it is empty.", remedy="Write env:NAME, file:PATH, or a URI without password.")
    with validation.blamed_on(key, remedy=_INSTEAD):
        refuse_literal_secret(text)


def check_key(reference: str | None) -> None:
    """Raises an error unless this is a reference to a secret. The text is never quoted."""
    if reference is not None and not text_is_reference(reference):
        refuse("key", "it must be a reference, not the key itself.", remedy="Write env:NAME or file:PATH.")


def _check_no_secret(key: Key, value: Any) -> None:
    """Options are passed on and logged like the rest of a declaration, so their secrets have to be references too."""
    if not isinstance(value, str) or text_is_reference(value):
        return
    if any(isinstance(part, str) and _SECRET_OPTION.search(part) for part in key):
        refuse(key, "it looks like a secret, and this declaration is logged and handed on.", remedy="Write env:NAME.")
    if "://" in value:
        check_reference(value, key)


def text_is_reference(text: str) -> bool:
    return _REFERENCE.fullmatch(text) is not None


def _leaves(value: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(each, (*key, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _leaves(each, (*key, index))
    else:
        yield key, value


def _check_columns(columns: tuple[str, ...]) -> None:
    for index, column in enumerate(columns):
        if not column:
            refuse(("columns", index), "a column's name is empty.")
        if column in columns[:index]:
            refuse(("columns", index), f'"{column}" is named twice.')


def _check_tables(tables: tuple[TableSpec, ...]) -> None:
    if not tables:
        refuse("tables", "no table is named.", remedy='Name some, for instance tables = ["public.*"].')
    names: set[object] = set()
    destinations: dict[object, str] = {}
    for index, table in enumerate(tables):
        name = table.name if table.pattern.wildcard else table.pattern.literal
        if name in names:
            refuse(("tables", index, "name"), f'"{table.name}" is named twice.', remedy="Leave one of the two.")
        names.add(name)
        if table.destination is not None:
            other = destinations.setdefault(parse_table(table.destination), table.name)
            if other != table.name:
                refuse(("tables", index, "destination"), f'"{table.destination}" is "{other}"\'s already.')


def _pattern(text: str, key: Key) -> Pattern:
    with validation.blamed_on(key):
        return Pattern.parse(text)


def _check_least(value: int, least: int, name: str, words: str) -> None:
    if value < least:
        refuse(name, f"it must be at least {words}.")
