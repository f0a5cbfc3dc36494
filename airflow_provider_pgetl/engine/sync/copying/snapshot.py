"""The group's slot with its exported snapshot, and what is read of the tables in it before any row is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.source.catalog import PublishedTable, read_tables
from airflow_provider_pgetl.engine.source.connecting import connect, connect_replication, worker_name
from airflow_provider_pgetl.engine.source.reading import imported_snapshot
from airflow_provider_pgetl.engine.source.slot_creation import CreatedSlot, create_slot
from airflow_provider_pgetl.engine.source.slots import drop_slot
from airflow_provider_pgetl.engine.tables import TableName


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """`release` lets it go, once nobody will import it any more: until then the source cannot clean up behind it."""

    created: CreatedSlot
    release: Callable[[], None]


@contextmanager
def exported_snapshot(uri: str, pipeline: str, attempt: int, slot: str, patience: float) -> Iterator[ExportedSnapshot]:
    """Make the slot, and hold its session, idle, for as long as the snapshot is wanted. The slot stays."""
    replication = connect_replication(uri, worker_name(pipeline, f"c{attempt} snapshot"))
    try:
        with closing(connect(uri, worker_name(pipeline, f"c{attempt} watcher"))) as watcher:
            created = create_slot(replication, watcher, slot, export_snapshot=True, patience=patience)
        yield ExportedSnapshot(created, replication.finish)
    finally:
        replication.finish()


def drop_group_slot(uri: str, pipeline: str, attempt: int, slot: str) -> None:
    """Over a session of its own: those of the copy may be broken."""
    with closing(connect(uri, worker_name(pipeline, f"c{attempt} slot"))) as connection:
        drop_slot(connection, slot)


def read_published(
    uri: str,
    name: str,
    snapshot: str | None,
    publications: Sequence[str],
    tables: Sequence[TableName],
    refuse: Callable[[TableName, PgetlError], None],
) -> tuple[PublishedTable, ...]:
    """The tables as published in the snapshot. One that is not as it should be is refused alone."""
    wanted = {str(table): table for table in tables}
    with closing(connect(uri, name)) as connection, imported_snapshot(connection, snapshot):
        while True:
            try:
                return read_tables(connection, publications, list(wanted.values()))
            except PgetlError as error:
                culprit = wanted.pop(error.table or "", None)
                if culprit is None:
                    raise
                refuse(culprit, error)
