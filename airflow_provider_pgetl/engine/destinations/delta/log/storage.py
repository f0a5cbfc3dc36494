"""The folders of tables in the store, and the reading and writing of files in them.

A table lies at ``<uri>/<schema>/<table>``. Names are encoded to be safe for every store: letters, digits and ``- . _``
stay, any other byte becomes ``~XX``, and so does a leading ``.`` or ``_``, which readers would take for hidden.

Files are read and written through the object store of delta-rs, which its commits use as well, with the same options;
files on a local path through the operating system. A written file exists completely or not at all: object stores show
an upload when it is complete, and on a local path a file is renamed into place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
import pyarrow as pa
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError
from obstore.store import from_url
from pyarrow import fs

from airflow_provider_pgetl.engine.destinations.delta.options import expect_endpoints
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName

# -- Writing an object only if there is none, which delta-rs does only for its own commits. ----------------------------
#
# The request goes through obstore, which uses the same library as delta-rs, with the same options. Options that only
# delta-rs supports are left out; if they matter, as a profile of AWS does, the preflight finds that objects cannot be
# written in this way (`store_preflight`). A table whose commits are ordered by a lock outside of the store (the locking
# provider of delta-rs) cannot be written to in this way.

_PREFIX = re.compile(r"^(aws|google|azure_storage|azure)_")
_UNKNOWN = re.compile(r"Configuration key: '([^']*)'")
_TRUE = ("1", "true", "on", "yes", "y")
_OF_THE_CLIENT = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "timeout",
    "user_agent",
}


def create_object(uri: str, options: Mapping[str, str], path: str, data: bytes) -> None:
    """Raises FileExistsError if the object is there, OSError for any other failure."""
    try:
        obstore.put(_store(uri, tuple(sorted(options.items()))), path, data, mode="create", use_multipart=False)
    except AlreadyExistsError as error:
        raise FileExistsError(f"{path} already exists") from error
    except BaseError as error:
        raise OSError(_message_of(error)) from error
    except NotImplementedError as error:  # as the option `aws_conditional_put` may demand
        raise OSError("the store is not asked to write an object only where there is none") from error


def _message_of(error: BaseError) -> str:
    """Returns the error's message without the debugging details that obstore adds."""
    return str(error).partition("\n\nDebug source")[0]


@lru_cache(maxsize=16)
def _store(uri: str, options: tuple[tuple[str, str], ...]) -> Any:
    config, client = _divided(options)
    while True:
        try:
            opened: Any = from_url  # its overloads distinguish stores by the type of `config`
            return opened(uri, config=config, client_options=client or None)
        except UnknownConfigurationKeyError as error:
            unknown = _UNKNOWN.search(str(error))
            known = {name: value for name, value in config.items() if unknown is None or name != unknown[1].lower()}
            if len(known) == len(config):
                raise OSError(_message_of(error)) from error
            config = known


def _divided(options: tuple[tuple[str, str], ...]) -> tuple[dict[str, str], dict[str, Any]]:
    """Divides options into those of the store and those of connections, which obstore takes separately."""
    config: dict[str, str] = {}
    client: dict[str, Any] = {}
    for name, value in ((name.lower(), value) for name, value in options):
        bare = _PREFIX.sub("", name)
        if bare not in _OF_THE_CLIENT:
            config[name] = value
        elif value.lower() in _TRUE and bare.startswith(("allow", "http1", "http2_only", "randomize")):
            client[bare] = True
        else:
            client[bare] = value
    return config, client


# -- Storage. ----------------------------------------------------------------------------------------------------------

# The line in which delta-rs reports an HTTP status, after a coloured arrow. Paths in the message may contain anything.
_REFUSED = re.compile(r"^(?:\W|\[\d+m)*40[13] (?:Unauthorized|Forbidden)\b", re.MULTILINE)
_MISCONFIGURED = re.compile(r"^Generic Config error|URL scheme is not allowed$|task \d+ panicked", re.MULTILINE)
# A panic in the library of delta-rs, usually because of an option. The class is no `Exception`, and its module cannot
# be imported.
_PANIC = "PanicException"
_ARROW = re.compile(r"^(?:\x1b\[\d+m|[\s↳])*")
_REMEDIES = {
    ErrorKind.CONNECTION: "Check that the store is up, and [destination.storage].",
    ErrorKind.CONFIG: 'Correct [destination.storage]; a store without TLS needs AWS_ALLOW_HTTP = "true".',
}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_UNSAFE = re.compile(rb"[^A-Za-z0-9._-]|^[._]")


@dataclass(frozen=True)
class Lake:
    """The root folder of all tables. `options` hold secrets and are never shown."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if urlsplit(self.uri).scheme in ("s3", "s3a"):
            expect_endpoints(self.options)

    def table(self, name: TableName) -> TableFolder:
        return self.place(f"{safe(name.schema)}/{safe(name.name)}")

    def place(self, path: str) -> TableFolder:
        return TableFolder(f"{self.uri.rstrip('/')}/{path}", self.options)


@dataclass(frozen=True)
class TableFolder:
    """A folder of the store, usually that of a Delta table. Paths are relative to it."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def storage_options(self) -> dict[str, str] | None:
        return dict(self.options) or None

    @cached_property
    def local(self) -> Path | None:
        """The folder, if it is on a local path; otherwise None."""
        parts = urlsplit(self.uri)
        if parts.scheme == "file":
            return Path(parts.path)
        return Path(self.uri).absolute() if not parts.scheme else None

    @cached_property
    def files(self) -> fs.FileSystem:
        if self.local is not None:
            return fs.SubTreeFileSystem(str(self.local), fs.LocalFileSystem())
        return fs.PyFileSystem(_ObjectStore(self.uri, dict(self.options)))

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[pa.NativeFile]:
        """Opens a file for writing. It is complete at the end of the block, and does not exist if the block fails."""
        target = path if self.local is None else f"{path}.{uuid.uuid4().hex[:8]}.writing"
        with self.errors(path):
            if self.local is not None:
                (self.local / path).parent.mkdir(parents=True, exist_ok=True)
            stream = self.files.open_output_stream(target)
            try:
                with stream:
                    yield stream
                if self.local is not None:
                    (self.local / target).replace(self.local / path)
            except BaseException:
                self.delete(target)
                raise

    def read(self, path: str) -> bytes:
        with self.errors(path):
            return self._content(path)

    def read_if_there(self, path: str) -> bytes | None:
        with self.errors(path), contextlib.suppress(FileNotFoundError):
            return self._content(path)
        return None

    def _content(self, path: str) -> bytes:
        if self.local is not None:
            return (self.local / path).read_bytes()
        with self.files.open_input_stream(path) as stream:
            return bytes(stream.read())

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Returns fewer bytes if the file ends earlier. Raises FileNotFoundError if there is no file."""
        try:
            with self.files.open_input_file(path) as stream:
                return bytes(stream.read_at(length, offset))
        except FileNotFoundError:
            raise
        except (OSError, DeltaError) as error:
            raise storage_error(f"{path} in {self.uri}", error) from error

    def write(self, path: str, data: bytes) -> None:
        with self.writing(path) as stream:
            stream.write(data)

    def create(self, path: str, data: bytes) -> None:
        """Writes the file if there is none. If there is one, raises FileExistsError and changes nothing; this also
        happens if an earlier request of the same call has written the file and its response was lost."""
        with self.errors(path):
            if self.local is None:
                create_object(self.uri, self.options, path, data)
                return
            written = self.local / f"{path}.{uuid.uuid4().hex[:8]}.writing"
            written.parent.mkdir(parents=True, exist_ok=True)
            try:
                written.write_bytes(data)
                os.link(written, self.local / path)
            finally:
                written.unlink(missing_ok=True)

    def size(self, path: str) -> int:
        with self.errors(path):
            return int(self.files.get_file_info(path).size)

    def has(self, path: str) -> bool:
        with self.errors(path):
            return bool(self.files.get_file_info(path).type is fs.FileType.File)

    def list(self, folder: str) -> list[str]:
        """Returns the paths of all files below the folder; none if there is no such folder."""
        with self.errors(folder):
            found = self.files.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True))
        return sorted(info.path for info in found if info.type is fs.FileType.File)

    def delete(self, path: str) -> None:
        """Deletes the file if it exists."""
        with self.errors(path), contextlib.suppress(FileNotFoundError):
            self.files.delete_file(path)

    def delete_all(self, folder: str) -> None:
        for path in self.list(folder):
            self.delete(path)
        if self.local is not None:
            self._remove_empty(self.local / folder)

    def _remove_empty(self, folder: Path) -> None:
        """Removes empty folders, which exist on local paths only. A folder that is being filled again stays."""
        for below, _, _ in sorted(os.walk(folder), reverse=True):
            with contextlib.suppress(OSError):
                Path(below).rmdir()

    @contextlib.contextmanager
    def as_it_was(self) -> Iterator[None]:
        """Removes, at the end of the block, the folders that were created in it and are empty."""
        folders = () if self.local is None else (self.local, *self.local.parents)
        missing = [folder for folder in folders if not folder.exists()]
        try:
            yield
        finally:
            for folder in missing:
                with contextlib.suppress(OSError):
                    folder.rmdir()

    @contextlib.contextmanager
    def errors(self, path: str) -> Iterator[None]:
        """Converts errors of the store. Callers that use `files` directly must wrap each access in it."""
        try:
            yield
        except FileExistsError:
            raise
        except (OSError, DeltaError) as error:
            raise storage_error(f"{path} in {self.uri}" if path else self.uri, error) from error
        except BaseException as error:
            if type(error).__name__ != _PANIC:
                raise
            raise storage_error(f"{path} in {self.uri}" if path else self.uri, error) from None


class _ObjectStore(DeltaStorageHandler):
    """The store of delta-rs, adapted: its files accept only bytes, while Arrow writes buffers."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
        return pa.PythonFile(_BytesOnly(self._handler.open_output_stream(path, metadata)), mode="w")


class _BytesOnly:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data))
        return len(data)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def storage_error(what: str, error: BaseException) -> PgetlError:
    """Returns the error for a failure of the store. The message of its library may be long; the first and the last line
    are used."""
    kind = _kind(error)
    return PgetlError(kind, f"The lake could not be used at {what}: {_words(error)}.", remedy=_REMEDIES.get(kind))


def log_error(uri: str, error: BaseException) -> PgetlError:
    """Returns the error for a failed access to a log. If the log itself cannot be read or written to, however often it
    is tried, the error concerns the table only; otherwise it is an error of the store."""
    words = str(error)
    if match := _BROKEN.search(words):
        message = f"The log of the Delta table at {uri} cannot be read: {match[0]}."
        return PgetlError(ErrorKind.DAMAGED, message, remedy=f"Put its files back, or {_BEGIN_ANEW}")
    if match := _UNFIT.search(words):
        message = f"The Delta table at {uri} cannot be written to: {match[0].rstrip('.')}."
        return PgetlError(ErrorKind.SCHEMA, message, remedy=TAKE_AWAY)
    return storage_error(uri, error)


# The wording of delta-rs. What it found instead may be anything, and is left out of the message.
_BROKEN = re.compile(
    r"Expected contiguous commit files|No (?:protocol|table metadata|table metadata or protocol) found in delta log"
    r"|Invalid Checkpoint|Invalid Parquet file|Json error|Invalid JSON"
)
_UNFIT = re.compile(
    r"Unsupported table features required.*|.*table is append-only.*|Column mapping is enabled but.*"
    r"|Feature '[^'\n]*' is not supported|Unsupported Delta table type: '[^'\n]*'|Table features must be specified"
    r"|Unsupported minimum (?:reader|writer) version.*"
    r"|Invalid protocol action in the delta log.*|Max catalog version is required when.*"
)
_BEGIN_ANEW = "remove its folder; then copy the table again: `pgetl reset FILE TABLE`."
TAKE_AWAY = f"Take that away from the table again, or {_BEGIN_ANEW}"


def _words(error: BaseException) -> str:
    """Returns what failed and the innermost reason, which follows the arrows. Leaves out XML responses of the store,
    which may contain the name of a key."""
    first, *causes = str(error).strip().splitlines() or [type(error).__name__]
    reason = _ARROW.sub("", causes[-1]).partition("<")[0].strip().rstrip(".:") if causes else ""
    return ": ".join(part for part in (first.removeprefix("Kernel error -> "), reason) if part)


def _kind(error: BaseException) -> ErrorKind:
    text = str(error)
    if type(error).__name__ == _PANIC or _MISCONFIGURED.search(text):
        return ErrorKind.CONFIG
    number = (error.errno if isinstance(error, OSError) else None) or _number(text)
    if number in _NO_ROOM:
        return ErrorKind.RESOURCES
    denied = number in _DENIED or _REFUSED.search(text) is not None
    return ErrorKind.PRIVILEGE if denied else ErrorKind.CONNECTION


def _number(text: str) -> int | None:
    """Returns the error number of the operating system from a message of delta-rs; None if it has none."""
    match = _OS_ERROR.search(text)
    return int(match[1]) if match else None


def safe(name: str) -> str:
    """Encodes a name as one segment of a path. Different names have different encodings."""
    return _UNSAFE.sub(lambda match: b"~%02X" % match[0][0], name.encode()).decode()
