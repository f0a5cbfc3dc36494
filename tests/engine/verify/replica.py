"""A replica that is verified, whose rows tests change on either side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
import tenacity
from deltalake.exceptions import CommitFailedError

from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.model.verification import TableVerified
from airflow_provider_pgetl.engine.verify import moment
from airflow_provider_pgetl.engine.verify.verifying import VerifyOptions
from tests.in_process import InProcess

T = TableName("public", "t")
Sentence = Callable[[], None]


class Replica(InProcess):
    """A replica whose rows tests change on either side."""

    def verify(self, **options: Any) -> TableVerified:
        (found,) = self.verify_all(**options)
        return found

    def verify_all(self, *, repair: bool = False, **options: Any) -> list[TableVerified]:
        with self.opened() as pipeline:
            return list(pipeline.verify(options=VerifyOptions(**options), repair=repair).tables)

    # -- the destination's rows

    @property
    def place(self) -> Path:
        return self.folder / "lake" / "public" / "t"

    def plant(self, where: str, column: str, value: str) -> None:
        """Another value in the destination, by SQL; in a lake in the type that it has there."""
        if self.kind == "postgres":
            self.databases.destination.execute(f"update public.t set {column} = {value} where {where}")
            return
        self.exchange(int(where.removeprefix("id = ")), column, value)

    def exchange(self, number: int, column: str, value: str) -> None:
        row = self._row(number)
        row[column] = _PLAIN[value]
        self._delete(number)
        self._append(row)

    def _row(self, number: int) -> dict[str, Any]:
        rows = pa.table(deltalake.DeltaTable(str(self.place)).scan()).to_pylist()
        return next(row for row in rows if row["id"] == number)

    def _append(self, row: dict[str, Any]) -> None:
        schema = pa.schema(deltalake.DeltaTable(str(self.place)).schema())
        deltalake.write_deltalake(str(self.place), pa.Table.from_pylist([row], schema), mode="append")

    def remove(self, number: int) -> None:
        if self.kind == "postgres":
            self.databases.destination.execute(f"delete from public.t where id = {number}")
        else:
            self._delete(number)

    @tenacity.retry(
        retry=tenacity.retry_if_exception_type(CommitFailedError), stop=tenacity.stop_after_delay(30), reraise=True
    )
    def _delete(self, number: int) -> None:
        """Deletes the row; again if the worker has committed meanwhile, which Delta refuses a DELETE for."""
        deltalake.DeltaTable(str(self.place)).delete(f"id = {number}")

    def add_again(self, number: int, new: int) -> None:
        """The same row once more, with another number."""
        if self.kind == "postgres":
            self.databases.destination.execute(
                f"create temp table one as select * from public.t where id = {number}; "
                f"update one set id = {new}; insert into public.t select * from one"
            )
        else:
            self._append({**self._row(number), "id": new})


# What SQL's literals are in a lake.
_PLAIN: Mapping[str, Any] = {
    "'-0.0'": -0.0,
    "'text '": "text ",
    "''": "",
    "null": None,
    "'1.00'": "1.00",
    "'{b,a}'": ["b", "a"],
    r"'\x00fe'": b"\x00\xfe",
    "2.51": Decimal("2.51"),
    "1": 1,
}


def arrives(replica: Replica) -> Callable[[], None]:
    """Wait until the stream has brought all that is committed now."""

    def wait() -> None:
        with replica.opened() as pipeline:
            until, deadline = pipeline.source_position(), time.monotonic() + 60
            while pipeline.whereabouts(T).position < until:
                assert time.monotonic() < deadline
                time.sleep(0.1)

    return wait


def between_snapshots(monkeypatch: pytest.MonkeyPatch, *happens: Sentence) -> None:
    """Has something happen in each of the first rounds, after the source's snapshot and before the destination's."""
    rounds = iter(happens)
    original = moment._OpeningMoment.await_arrival

    def arrived(self: Any, *arguments: Any) -> Any:
        found = original(self, *arguments)
        next(rounds, lambda: None)()
        return found

    monkeypatch.setattr(moment._OpeningMoment, "await_arrival", arrived)
