"""A sequence of steps, held in memory up to a budget and beyond it in a temporary file.

One thread appends to a `Spool` until it is handed over; from then on it is only read. It can be iterated any number of
times; an iteration holds one spilled step at a time. The file has no name, so that the kernel removes it with the
process, however that ends. Dropping or closing the spool frees both memory and file. A `secret` spool encrypts what it
writes there, with a key that is in the memory of this process alone: of a pipeline that transforms values, none may
reach a disk before that.

A `Budget` is shared by all spools whose steps must fit into it together. It counts the steps that the spools keep in
memory, neither the rows still being gathered nor what a reader makes of a step.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import CommitLsn, RowCounts
from airflow_provider_pgetl.engine.wal.pgoutput import HEADER, Relation

# -- Steps: sealed rows per table, and the truncates between them. -----------------------------------------------------
#
# Rows stay as pgoutput sent them, as concatenated CopyData payloads, which are parsed by columns later. `key` is the
# answer of the assembler's `owns` callback for these rows.

K = TypeVar("K")
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Sealed(Generic[K]):
    """One or more rows of one relation, in order, all sent under the same definition of the relation.

    `lengths` and `ordinals` have one entry per row. `commits` has one line per transaction: the index of its first row
    in this step, its commit LSN, its commit time. A transaction may begin in one step and continue in a later one.
    `leaves` are the partitions that were described before one of the rows: the step holds their first rows on this
    connection, or the first since they were altered.
    """

    key: K
    relation: Relation
    data: bytes
    lengths: Ints
    commits: Ints
    ordinals: Ints
    leaves: tuple[Relation, ...] = ()

    def __len__(self) -> int:
        return len(self.lengths)

    def counts(self) -> RowCounts:
        """Counts the rows by the kind byte of their payloads."""
        kinds = np.frombuffer(self.data, np.uint8)[np.cumsum(self.lengths) - self.lengths + HEADER]
        inserts, updates, deletes = (int(np.count_nonzero(kinds == kind)) for kind in b"IUD")
        return RowCounts(inserts, updates, deletes)

    @property
    def nbytes(self) -> int:
        return len(self.data) + self.lengths.nbytes + self.commits.nbytes + self.ordinals.nbytes


@dataclass(frozen=True, slots=True)
class TruncateStep(Generic[K]):
    """The relation was truncated. Every step before it in a batch, of any table, happened before it."""

    key: K
    relation: Relation
    commit_lsn: CommitLsn
    commit_time: int
    ordinal: int


AssembledStep = Sealed[K] | TruncateStep[K]


# -- Spool. ------------------------------------------------------------------------------------------------------------


class Budget:
    """An amount of memory, in bytes. Any thread may claim and give back a part of it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._claimed = 0
        self._lock = threading.Lock()

    @property
    def claimed(self) -> int:
        return self._claimed

    def claim(self, size: int) -> bool:
        """Claims `size` bytes if they are free. Returns whether they were."""
        with self._lock:
            fits = self._claimed + size <= self._limit
            self._claimed += size if fits else 0
            return fits

    def give_back(self, size: int) -> None:
        with self._lock:
            self._claimed -= size


@dataclass(slots=True)
class _Held:
    """One spool's share of the budget. Separate from the spool, so that a finalizer of the spool can give it back."""

    budget: Budget
    size: int = 0

    def claim(self, size: int) -> bool:
        fits = self.budget.claim(size)
        self.size += size if fits else 0
        return fits

    def give_back(self) -> None:
        size, self.size = self.size, 0
        self.budget.give_back(size)


@dataclass(frozen=True, slots=True)
class _Spilled(Generic[K]):
    """The place of a step in the file: its data begins at `at`; its lengths, ordinals and commits follow."""

    key: K
    relation: Relation
    leaves: tuple[Relation, ...]
    at: int
    size: int
    rows: int
    transactions: int
    nonce: bytes = b""


class _Cipher:
    """AES in counter mode, under a key of its own."""

    def __init__(self) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers import algorithms
        except ImportError:
            message = "Changes beyond the memory budget cannot be encrypted: the library cryptography is not installed."
            remedy = "Install it: pip install 'airflow-provider-pgetl[transform]'; or allow more memory."
            raise PgetlError(ErrorKind.CONFIG, message, remedy=remedy) from None
        self._algorithm = algorithms.AES(os.urandom(32))

    def applied(self, nonce: bytes, data: bytes) -> bytes:
        """Encrypts the data, or decrypts it."""
        from cryptography.hazmat.primitives.ciphers import Cipher, modes

        return Cipher(self._algorithm, modes.CTR(nonce)).encryptor().update(data)


class Spool(Generic[K]):
    """Steps, appended once and read as often as needed."""

    def __init__(self, budget: Budget, directory: Path | None = None, *, secret: bool = False) -> None:
        self._held = _Held(budget)
        self._is_secret = secret
        self._cipher: _Cipher | None = None
        self._directory = directory
        self._steps: list[AssembledStep[K] | _Spilled[K]] = []
        self._file: IO[bytes] | None = None
        self._closed = False
        self.rows = 0
        self.nbytes = 0
        self.spilled_bytes = 0
        weakref.finalize(self, self._held.give_back)

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[AssembledStep[K]]:
        self._expect_open()
        for step in self._steps:
            yield self._read(step) if isinstance(step, _Spilled) else step

    def append(self, step: AssembledStep[K]) -> None:
        self._expect_open()
        if isinstance(step, TruncateStep):
            self._steps.append(step)
            return
        self._steps.append(step if self._held.claim(step.nbytes) else self._spill(step))
        self.rows += len(step)
        self.nbytes += step.nbytes

    def close(self) -> None:
        """Frees memory and file. Reading raises an error from then on, as an empty batch would look like an applied
        one."""
        self._closed = True
        self._steps.clear()
        self._held.give_back()
        if self._file is not None:
            self._file.close()

    def _expect_open(self) -> None:
        if self._closed:
            raise PgetlError(ErrorKind.INTERNAL, "A batch was used after it had been let go.")

    def _spill(self, step: Sealed[K]) -> _Spilled[K]:
        size, rows, transactions = len(step.data), len(step), len(step.commits)
        nonce = os.urandom(16) if self._is_secret else b""
        place = _Spilled(step.key, step.relation, step.leaves, self.spilled_bytes, size, rows, transactions, nonce)
        parts = [
            np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part
            for part in (step.data, step.lengths, step.ordinals, step.commits)
        ]
        if self._is_secret:
            self._cipher = self._cipher or _Cipher()
            parts = [self._cipher.applied(nonce, b"".join(parts))]
        with self._disk_errors():
            self._file = self._file or tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115  lives with the spool
            for part in parts:
                self._file.write(part)
            self._file.flush()
        self.spilled_bytes += step.nbytes
        return place

    def _read(self, place: _Spilled[K]) -> Sealed[K]:
        numbers = 2 * place.rows + 3 * place.transactions
        with self._disk_errors():
            if self._cipher is None:
                data = self._read_exactly(place.at, place.size)
                rest = np.frombuffer(self._read_exactly(place.at + place.size, 8 * numbers), dtype=np.int64)
            else:
                whole = self._cipher.applied(place.nonce, self._read_exactly(place.at, place.size + 8 * numbers))
                data, rest = whole[: place.size], np.frombuffer(whole[place.size :], dtype=np.int64)
        lengths, ordinals, commits = np.split(rest, [place.rows, 2 * place.rows])
        return Sealed(place.key, place.relation, data, lengths, _lines(commits), ordinals, place.leaves)

    def _read_exactly(self, at: int, size: int) -> bytes:
        """Reads by position, so that several readers do not interfere with each other."""
        assert self._file is not None
        parts: list[bytes] = []
        while size:
            part = os.pread(self._file.fileno(), size, at)
            if not part:
                raise OSError(f"the file ends {size} bytes early")
            parts.append(part)
            at, size = at + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = self._directory or tempfile.gettempdir()
            message = f"Changes beyond the memory budget could not be kept in a file under {where}: {error}."
            raise PgetlError(
                ErrorKind.RESOURCES, message, remedy="Free disk space there, or allow more memory."
            ) from error


def _lines(numbers: Ints) -> Ints:
    return numbers.reshape(-1, 3)
