"""Who may apply a change: the one place that decides it.

Of a table's changes, exactly one stream owns each

* the **apply stream**, iff the table is Ready or SyncDone{l}: the table had no change from its position there to l;
* the **catch-up stream** of the table's group, iff the table is in FinishedCopy, SyncWait or Catchup. It stops at a
  boundary l at or behind its target before the table becomes SyncDone{l}, so it never meets a change at or behind l.

And nobody applies a change that the destination has already: one before the table's position there.
"""

from __future__ import annotations

from airflow_provider_pgetl.engine.phases import (
    Catchup,
    FinishedCopy,
    Ready,
    SyncDone,
    SyncWait,
    TableState,
)
from airflow_provider_pgetl.engine.positions import Boundary, CommitLsn


def apply_owns(state: TableState, position: Boundary, commit_lsn: CommitLsn) -> bool:
    """Whether the apply stream is to apply a change of this transaction to a table at `position`."""
    match state.phase:
        case Ready() | SyncDone():
            return not position.covers(commit_lsn)
        case _:
            return False


def catchup_owns(state: TableState, attempt: int, position: Boundary, commit_lsn: CommitLsn) -> bool:
    """Whether the catch-up stream of group `attempt` is to apply a change of this transaction."""
    return catching_up(state, attempt) and not position.covers(commit_lsn)


def catching_up(state: TableState, attempt: int) -> bool:
    """Whether the table is in the hands of the catch-up stream of this group."""
    return state.attempt == attempt and isinstance(state.phase, FinishedCopy | SyncWait | Catchup)
