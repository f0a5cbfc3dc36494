"""Whether a store is one that a lake can lie in: tried out, and left as it was.

A commit is safe where the store refuses to write an object that is there (S3: `If-None-Match: *`). One that does not
know the condition ignores it: of two that commit at once both succeed, and the first is gone. So some commit at once,
to a table of their own. The library asks which version is the latest before it commits: who comes too late for the
race is refused in any store. That several have won it proves what is wrong; that one has is no proof of the contrary.

Commits with deletion vectors are written in another way (`conditional`), which is tried as well where they are wanted.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import Field, PrimitiveType, Schema

from airflow_provider_pgetl.engine.destinations.delta.storage import Lake, Place, storage_error
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError

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
    """Raise what keeps a lake from being written to there. `marks_rows`: by deletion vectors, too."""
    place = lake.place("_pgetl")
    with place.as_it_was():
        place.write("probe", b"pgetl")
        place.read("probe")
        place.delete("probe")
        if marks_rows:
            _expect_refusal(place, lake.uri)
        _expect_one_winner(lake.place(f"_pgetl/probe.{uuid.uuid4().hex}"), lake.uri)


def _expect_one_winner(place: Place, lake_uri: str) -> None:
    try:
        winners = _race(place)
    except (DeltaError, OSError) as error:
        raise storage_error(place.uri, error) from error
    finally:
        place.delete_all("")
    if winners > 1:
        message = f"The store of {lake_uri} lets a version of a table be written twice: commits would be lost."
        raise PgetlError(ErrorKind.CONFIG, message, remedy=_REMEDY)


def _expect_refusal(place: Place, lake_uri: str) -> None:
    """Of a second object in the place of the first."""
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


def _race(place: Place) -> int:
    """How many have committed the same version."""
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
