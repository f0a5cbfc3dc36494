"""Tests whether a store can hold a lake, and leaves the store as it was.

Commits are safe if the store refuses to write an object that exists (S3: `If-None-Match: *`). A store that does not
support the condition ignores it: of two concurrent commits both succeed, and the first is lost. So the test makes
several commits at once, to a table created for the test. delta-rs reads the latest version before it commits, so a
commit that comes too late for the race is refused in any store. If several commits of a version succeed, the store is
proved unsafe; if only one does, that is no proof that the store is safe.

Commits with deletion vectors are written in another way (`storage`), which is tested as well if they are enabled.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import Field, PrimitiveType, Schema

from airflow_provider_pgetl.engine.destinations.delta.log.storage import Lake, TableFolder, storage_error
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError

_RACERS = 4
_SCHEMA = Schema([Field("nothing", PrimitiveType("string"))])
_REMEDY = (
    "Keep the lake in a store that honours the condition `If-None-Match: *`, as S3, Google Cloud Storage and Azure do, "
    "and newer releases of what speaks like S3; or in a folder."
)

_REWRITE = (
    "Commits with deletion vectors take their credentials from [destination.storage], the environment or the machine, "
    'but from no profile of AWS: correct [destination.storage], or set updates = "rewrite" in [destination].'
)


def probe(lake: Lake, *, marks_rows: bool = False) -> None:
    """Raises if a lake cannot be written to there. `marks_rows`: also tests commits with deletion vectors."""
    place = lake.place("_pgetl")
    with place.as_it_was():
        place.write("probe", b"pgetl")
        place.read("probe")
        place.delete("probe")
        if marks_rows:
            _expect_refusal(place, lake.uri)
        _expect_one_winner(lake.place(f"_pgetl/probe.{uuid.uuid4().hex}"), lake.uri)


def _expect_one_winner(place: TableFolder, lake_uri: str) -> None:
    try:
        winners = _race(place)
    except (DeltaError, OSError) as error:
        raise storage_error(place.uri, error) from error
    finally:
        place.delete_all("")
    if winners > 1:
        message = f"The store of {lake_uri} lets a version of a table be written twice: commits would be lost."
        raise PgetlError(ErrorKind.CONFIG, message, remedy=_REMEDY)


def _expect_refusal(place: TableFolder, lake_uri: str) -> None:
    """Raises unless the store refuses to create an object that exists."""
    path = f"probe.{uuid.uuid4().hex}"
    try:
        place.create(path, b"pgetl")
        place.create(path, b"other")
    except FileExistsError:
        if place.read(path) == b"pgetl":
            return
    except PgetlError as error:
        raise PgetlError(error.kind, error.message, remedy=_REWRITE) from error
    finally:
        place.delete(path)
    message = f"The store of {lake_uri} lets an object be written twice: commits would be lost."
    raise PgetlError(ErrorKind.CONFIG, message, remedy=_REMEDY)


def _race(place: TableFolder) -> int:
    """Returns how many concurrent commits of the same version have succeeded."""
    options = place.storage_options
    DeltaTable.create(place.uri, _SCHEMA, storage_options=options)
    start = threading.Barrier(_RACERS)

    def commit(table: DeltaTable) -> bool:
        start.wait()
        try:
            table.create_write_transaction(
                [], "append", _SCHEMA, commit_properties=CommitProperties(max_commit_retries=0)
            )
        except (DeltaError, OSError) as error:
            if not isinstance(error, CommitFailedError) and "already exists" not in str(error):
                raise
            return False
        return True

    with ThreadPoolExecutor(_RACERS, "pgetl probe") as pool:
        return sum(pool.map(commit, [DeltaTable(place.uri, storage_options=options) for _ in range(_RACERS)]))
