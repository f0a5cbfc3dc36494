"""The type of the Delta Lake destination, and its options.

Options stand beside `type` and `uri` in ``[destination]`` of the pipeline file.

`storage` is passed to the object store as it is; its values may be references (``env:NAME``, ``file:PATH``).
`storage_from` is a reference to further storage options, as a JSON object. Both are resolved when a destination is
opened, in the process that needs them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

from airflow_provider_pgetl.engine.config import validation
from airflow_provider_pgetl.engine.config.destination_types import ColumnDescription, DestinationType
from airflow_provider_pgetl.engine.config.secrets import resolve
from airflow_provider_pgetl.engine.config.validation import refuse
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.quantities import parse_duration, parse_size
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema

if TYPE_CHECKING:
    from deltalake.schema import DataType

Mode = Literal["upsert", "history"]
OutOfRange = Literal["error", "null", "text"]
Merge = Literal["worker", "spark"]
Updates = Literal["rewrite", "merge_on_read"]

_REFERENCE = re.compile(r"(env|file):.+", re.DOTALL)
_ENDPOINT = re.compile(r"(aws_|azure_|azure_storage_)?endpoint(_url)?(_s3|_dynamodb)?", re.IGNORECASE)
_URL = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d{1,5})?(/\S*)?", re.IGNORECASE)
_ITS_SCHEME = 'Write it with its scheme, like "https://s3.example.com" or "http://localhost:9000".'
_LOCK = re.compile(r"(aws_)?s3_locking_provider", re.IGNORECASE)
_NO_LOCK = "commits with deletion vectors cannot take part in a locking provider"
_DECIMAL = re.compile(r"decimal\( *(\d{1,2}) *, *(\d{1,2}) *\)")
_SIZES = ("target_file_bytes", "key_index_bytes")
_DURATIONS = ("vacuum_retention",)
_MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class DeltaOptions:
    """Options of a Delta destination.

    `merge`: what merges changes into the tables, the streaming worker or Spark; for Spark they land beside the tables.
    `updates`: whether a change rewrites the files of the rows that it changes, or marks those rows as deleted by a
    deletion vector and writes the new ones to a new file; then readers must support deletion vectors.
    `key_index_bytes`: disk that the worker may use to find such rows by key. `numeric`: what a numeric without
    precision becomes, ``text`` or ``decimal(p,s)``. `housekeeping`: whether small files are compacted between batches,
    and deletion vectors are folded into their files. `vacuum_retention`: seconds for which files that no longer belong
    to the table are kept, None to keep them for ever.
    """

    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    storage_from: str | None = None
    mode: Mode = "upsert"
    merge: Merge = "worker"
    updates: Updates = "rewrite"
    out_of_range: OutOfRange = "error"
    numeric: str = "text"
    target_file_bytes: int = 128 * _MEGABYTE
    key_index_bytes: int = 2048 * _MEGABYTE
    housekeeping: bool = True
    vacuum_retention: float | None = None

    def __post_init__(self) -> None:
        validation.check_types(self)
        _check_storage(self.storage)
        if self.storage_from is not None and not _REFERENCE.fullmatch(self.storage_from):
            refuse("storage_from", "it is no reference.", remedy='Write "env:NAME" or "file:PATH".')
        if self.numeric != "text":
            if self.numeric_type is None:
                refuse("numeric", f'"{self.numeric}" is neither text nor a decimal.', remedy='Write "decimal(38,10)".')
            object.__setattr__(self, "numeric", "decimal({},{})".format(*self.numeric_type))
        if self.lands and self.keeps_history:
            refuse("merge", "a history is only added to: there is nothing to merge.", remedy="Leave it out.")
        if self.marks_rows:
            self._check_marking()
        if self.target_file_bytes < _MEGABYTE:
            refuse("target_file_bytes", "it must be at least 1MiB.")
        validation.check_size(self.target_file_bytes, "target_file_bytes")
        if self.key_index_bytes < 0:
            refuse("key_index_bytes", "it must not be negative.")
        validation.check_size(self.key_index_bytes, "key_index_bytes")
        if self.vacuum_retention is not None:
            if self.vacuum_retention < 3600:
                refuse("vacuum_retention", "readers need the files that they have begun to read: at least one hour.")
            validation.check_duration(self.vacuum_retention, "vacuum_retention")

    def _check_marking(self) -> None:
        remedy = 'Leave it out, or set updates = "rewrite".'
        if self.lands:
            refuse("updates", 'deletion vectors are written by the worker; merge = "spark" rewrites.', remedy=remedy)
        if self.keeps_history:
            refuse("updates", "a history is only added to: nothing in it is updated.", remedy=remedy)
        if any(_LOCK.fullmatch(name) for name in self.storage):
            refuse("updates", f"{_NO_LOCK}.", remedy=remedy)

    @property
    def marks_rows(self) -> bool:
        """Whether changed rows are marked as deleted in their files, by deletion vectors."""
        return self.updates == "merge_on_read"

    @property
    def keeps_history(self) -> bool:
        return self.mode == "history"

    @property
    def lands(self) -> bool:
        """Whether changes land beside the tables, to be merged elsewhere."""
        return self.merge == "spark"

    @property
    def form(self) -> Mapping[str, str]:
        """The options that decide the form of tables: if one of them changes, no table can be continued as it is."""
        values = "text" if self.out_of_range == "text" else "typed"
        return {"mode": self.mode, "numeric": self.numeric, "out_of_range": values}

    @property
    def numeric_type(self) -> tuple[int, int] | None:
        """Precision and scale of the decimal; None where `numeric` is not a valid decimal."""
        match = _DECIMAL.fullmatch(self.numeric)
        if match is None or not 1 <= int(match[1]) <= 38 or int(match[2]) > int(match[1]):
            return None
        return int(match[1]), int(match[2])

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> DeltaOptions:
        """Returns the options of a declaration, where sizes and durations are written with their units."""
        values = {name: _quantity(name, value) for name, value in given.items()}
        known = {one.name for one in fields(cls)}
        validation.check_keys(values, tuple(known), beside=("type", "uri", "existing"))
        return cls(**values)


def resolved(given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Returns what is declared, with the values of its storage references in place of the references."""
    rest = dict(given)
    source, storage = rest.pop("storage_from", None), rest.pop("storage", {})
    whole = {} if source is None else _storage_at(source, environment)
    for name, value in storage.items():
        whole[name] = resolve(value, environment) if _REFERENCE.fullmatch(value) else value
    return {**rest, "storage": whole} if whole else rest


def expect_endpoints(storage: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
    """Raises an error if the environment sets the address of a store of kind S3 to something that is not a URL: the
    library that reads it there, if no option takes precedence, ends in a panic."""
    if any(_ENDPOINT.fullmatch(name) for name in storage):
        return
    for name in sorted(environment):
        if name.lower().startswith("aws_") and _ENDPOINT.fullmatch(name) and not _URL.fullmatch(environment[name]):
            message = f"The environment variable {name} is no URL of a store."
            raise PgetlError(ErrorKind.CONFIG, message, remedy=f"{_ITS_SCHEME[:-1]}, or unset it.")


def expect_no_lock(environment: Mapping[str, str] = os.environ) -> None:
    """Raises an error if the environment demands a locking provider for the store: only delta-rs would take the
    lock."""
    for name in sorted(environment):
        if _LOCK.fullmatch(name):
            message = f"The environment variable {name} is set: {_NO_LOCK}."
            raise PgetlError(ErrorKind.CONFIG, message, remedy='Unset it, or set updates = "rewrite".')


def _storage_at(reference: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Errors quote nothing of the value that the reference stands for."""
    try:
        found = json.loads(resolve(reference, environment))
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        remedy = 'Write an object of texts there, like {"AWS_REGION": "eu-central-1"}.'
        raise PgetlError(ErrorKind.CONFIG, f"{reference} is no storage configuration in JSON.", remedy=remedy)
    return found


def _check_storage(storage: Mapping[str, Any]) -> None:
    """Raises an error unless every value is text. Errors quote only the name of an option."""
    for name, value in storage.items():
        if not isinstance(value, str):
            refuse(("storage", name), "it must be text.", remedy='Write it in quotes, or as "env:NAME".')
        if _ENDPOINT.fullmatch(name) and not (_URL.fullmatch(value) or _REFERENCE.fullmatch(value)):
            refuse(("storage", name), "it is no URL of a store.", remedy=_ITS_SCHEME)


def _quantity(name: str, value: Any) -> Any:
    if not isinstance(value, str) or name not in (*_SIZES, *_DURATIONS):
        return value
    try:
        return parse_size(value) if name in _SIZES else parse_duration(value)
    except ValueError as error:
        refuse(name, f'"{value}" cannot be read: {error}.')


@dataclass(frozen=True, slots=True)
class _DeltaLake(DestinationType):
    def open(self, uri: str | None, options: Mapping[str, Any], pipeline: str, worker: str) -> object:
        del worker
        try:
            from airflow_provider_pgetl.engine.destinations.delta.destination import DeltaDestination
        except ImportError as error:
            remedy = "Install airflow-provider-pgetl[delta], here and on the executors."
            raise PgetlError(ErrorKind.CONFIG, f"Delta Lake needs more packages: {error}.", remedy=remedy) from error
        if uri is None:
            raise PgetlError(ErrorKind.CONFIG, "The destination's URI was not resolved.")
        return DeltaDestination(uri, pipeline, options)

    def check(self, options: Mapping[str, Any]) -> None:
        DeltaOptions.read(options)

    def read_uri(self, uri: str) -> str:
        """Returns the path of a lake in a local folder in place of its file URI, because `file:PATH` is a reference to
        a file that holds a URI."""
        if not uri.startswith("file://"):
            return uri
        path = unquote(uri.removeprefix("file://"))
        if not path.startswith("/"):
            refuse("uri", "it names no folder of this machine.", remedy="Write file:///path, or the path alone.")
        return path

    def resolved(self, options: Mapping[str, Any], environment: Mapping[str, str]) -> Mapping[str, Any]:
        return resolved(options, environment)

    def lands(self, options: Mapping[str, Any]) -> bool:
        return DeltaOptions.read(options).lands

    def form(self, options: Mapping[str, Any]) -> Mapping[str, str]:
        return DeltaOptions.read(options).form

    def folder(self, table: TableName) -> str:
        from airflow_provider_pgetl.engine.destinations.delta.log.storage import safe

        return f"{safe(table.schema)}/{safe(table.name)}"

    def columns(self, schema: TableSchema, options: Mapping[str, Any]) -> Sequence[ColumnDescription]:
        from airflow_provider_pgetl.engine.destinations.delta.shape import DeltaShape

        fields = DeltaShape(schema, DeltaOptions.read(options)).fields
        return [ColumnDescription(one.name, _spelled(one.type), one.metadata.get("comment")) for one in fields]


def _spelled(kind: DataType) -> str:
    """Returns the type as SQL writes it. The Delta tables of a pipeline contain no maps or structs."""
    from deltalake.schema import ArrayType

    return f"array<{_spelled(kind.element_type)}>" if isinstance(kind, ArrayType) else str(kind.type)


DELTA = _DeltaLake("delta", tuple(one.name for one in fields(DeltaOptions)), needs_uri="a lake lies somewhere")
