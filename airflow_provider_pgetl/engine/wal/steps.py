"""What a stretch of the stream comes down to: sealed rows per table, and the truncates between them.

Rows stay as pgoutput sent them, whole CopyData payloads one behind another, to be parsed by columns later. `key` is
whatever the owner answered when it was asked whose the rows are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.positions import CommitLsn, RowCounts
from airflow_provider_pgetl.engine.wal.decoder import HEADER
from airflow_provider_pgetl.engine.wal.messages import Relation

K = TypeVar("K")
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Sealed(Generic[K]):
    """Rows of one relation, in order, all of one form of it, and at least one.

    `lengths` and `ordinals` have one entry per row. `commits` has one line per transaction: the index of its first row
    here, its commit LSN, its commit time. A transaction may begin in one step and go on in a later one. `leaves` are
    the partitions that were described before one of the rows: those whose first rows, on this connection or since they
    were altered, are here.
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
        """By the kind that each payload names."""
        kinds = np.frombuffer(self.data, np.uint8)[np.cumsum(self.lengths) - self.lengths + HEADER]
        inserts, updates, deletes = (int(np.count_nonzero(kinds == kind)) for kind in b"IUD")
        return RowCounts(inserts, updates, deletes)

    @property
    def nbytes(self) -> int:
        return len(self.data) + self.lengths.nbytes + self.commits.nbytes + self.ordinals.nbytes


@dataclass(frozen=True, slots=True)
class TruncateStep(Generic[K]):
    """The relation was emptied. Whatever comes before it in a batch happened before it, whatever table it is of."""

    key: K
    relation: Relation
    commit_lsn: CommitLsn
    commit_time: int
    ordinal: int


Step = Sealed[K] | TruncateStep[K]
