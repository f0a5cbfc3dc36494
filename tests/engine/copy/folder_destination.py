"""A destination as a person might write it: the plain contract and no more. Rows go to files in a folder."""

import shutil
import uuid
from pathlib import Path

import pyarrow as pa
from pyarrow import feather

from airflow_provider_pgetl.engine.changes.batch import EventBatch
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema

PATH = "tests.engine.copy.folder_destination:FolderDestination"


class FolderDestination:
    """One folder per table, one file per batch."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    @property
    def name(self) -> str:
        return "folder"

    def drop_table_for_copy(self, schema: TableSchema) -> None:
        shutil.rmtree(self._place(schema.table), ignore_errors=True)

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        place = self._place(schema.table)
        place.mkdir(parents=True, exist_ok=True)
        feather.write_feather(pa.Table.from_batches([rows]), place / f"{uuid.uuid4().hex}.arrow")

    def write_events(self, batch: EventBatch) -> None:
        raise NotImplementedError("these tests only copy")

    def shutdown(self) -> None:
        pass

    def rows(self, table: TableName) -> pa.Table:
        """All rows, for tests."""
        return pa.concat_tables([feather.read_table(file) for file in sorted(self._place(table).glob("*.arrow"))])

    def holds(self, table: TableName) -> bool:
        return self._place(table).exists()

    def _place(self, table: TableName) -> Path:
        return self._folder / str(table)
