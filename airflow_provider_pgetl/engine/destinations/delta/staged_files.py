"""What copy attempts have written for a table, before it is the table's: files, and the notes that make them count."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_provider_pgetl.engine.destinations.delta.data_files import Written
from airflow_provider_pgetl.engine.destinations.delta.log import TableLog
from airflow_provider_pgetl.engine.destinations.delta.storage import Place, safe

_NOTES = "_pgetl"
_NOTE = re.compile(r"(\d+)-[0-9a-f]+\.json")


@dataclass(frozen=True, slots=True)
class Note:
    """One range that is whole."""

    path: str
    number: int
    rows: int
    files: tuple[Written, ...]

    @classmethod
    def read(cls, place: Place, path: str) -> Note:
        data = json.loads(place.read(path))
        return cls(path, data["number"], data["rows"], tuple(Written(**one) for one in data["files"]))

    def write(self, place: Place) -> None:
        data = {"number": self.number, "rows": self.rows, "files": [one.as_json() for one in self.files]}
        place.write(self.path, json.dumps(data).encode())


class StagedFiles:
    """Of one table, all attempts of one pipeline."""

    def __init__(self, log: TableLog) -> None:
        self._log = log
        self._place = log.place
        self._name = f"copy-{safe(log.pipeline)}-"
        folder = rf"{re.escape(self._name)}(\d+)/"
        self._staged = re.compile(f"{_NOTES}/{folder}")
        self._written = re.compile(folder)

    def folder(self, attempt: int) -> str:
        """Where the attempt's files are. No other pipeline's attempt has it, should one copy to the same place."""
        return f"{self._name}{attempt}"

    def _notes(self, attempt: int) -> str:
        return f"{_NOTES}/{self.folder(attempt)}"

    def attempts(self) -> list[int]:
        """Those of which there is anything."""
        return sorted({int(match[1]) for path in self._place.list(_NOTES) if (match := self._staged.match(path))})

    def attempt_of(self, path: str) -> int | None:
        """Which attempt's folder the file is in; None of a file in no such folder."""
        match = self._written.match(path)
        return int(match[1]) if match else None

    def begin(self, attempt: int) -> None:
        self._place.write(self._begun(attempt), b"")

    def has_begun(self, attempt: int) -> bool:
        return self._begun(attempt) in self._place.list(self._notes(attempt))

    def add(self, attempt: int, number: int, rows: int, files: Sequence[Written]) -> None:
        path = f"{self._notes(attempt)}/{number:06d}-{uuid.uuid4().hex}.json"
        Note(path, number, rows, tuple(files)).write(self._place)

    def notes(self, attempt: int, number: int | None = None) -> Iterator[Note]:
        for path in self._place.list(self._notes(attempt)):
            match = _NOTE.fullmatch(path.rpartition("/")[2])
            if match and number in (None, int(match[1])):
                yield Note.read(self._place, path)

    def chosen(self, attempt: int) -> list[Note]:
        """One note for each range."""
        by_number: dict[int, Note] = {}
        for note in self.notes(attempt):
            by_number.setdefault(note.number, note)
        return list(by_number.values())

    def remove(self, attempt: int, *, published: bool) -> None:
        """Take away what the attempt wrote, unless it is, or has been, the table's."""
        if published or self._is_referenced(attempt):
            self.settle(attempt)
            return
        self._place.delete_all(self.folder(attempt))
        self._place.delete_all(self._notes(attempt))

    def remove_all(self) -> None:
        """Nobody will come back for any attempt."""
        self._log.refresh()
        record = self._log.standing().record
        for attempt in self.attempts():
            self.remove(attempt, published=record is not None and record.published == attempt)

    def settle(self, attempt: int) -> None:
        """The attempt is published: what publication did not take goes, and then the notes."""
        notes = list(self.notes(attempt))
        chosen = {one.path for note in self.chosen(attempt) for one in note.files}
        for path in {one.path for note in notes for one in note.files} - chosen:
            self._place.delete(path)
        self._place.delete_all(self._notes(attempt))

    def _is_referenced(self, attempt: int) -> bool:
        return self._log.exists and any(one.path.startswith(f"{self.folder(attempt)}/") for one in self._log.files())

    def _begun(self, attempt: int) -> str:
        return f"{self._notes(attempt)}/begun"
