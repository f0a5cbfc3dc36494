"""Decisions on cleanup and on work to be started, for `prepare` and for the running worker: pure functions.

Nothing here acts. Each function decides from the tables' states, the slots that exist and the live attempts. The
decision is carried out through the store's compare-and-set, so that one that is out of date does no harm. Dropping a
slot is not protected in this way: for `slots_to_drop` the slots are read first, then the attempts, and the states last.
A slot belongs to its attempt until it belongs to a table, and once it belongs to neither it never will again.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import (
    CATCHING_UP,
    FOLLOWED,
    Catchup,
    CopyDied,
    DataSync,
    Demoted,
    Errored,
    Event,
    FinishedCopy,
    GroupLost,
    Init,
    Phase,
    Ready,
    Reset,
    RetryPolicy,
    RolledBack,
    SyncDone,
    SyncWait,
    TableState,
    needs_group_slot,
    past_init,
    phase_name,
)
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.model.quantities import format_duration
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.engine.state.store import (
    APPLY_CEILING,
    DestinationMetadata,
    HistoryEntry,
    StateStore,
    Store,
    TableRecord,
)

States = Mapping[TableName, TableState]

# Covers two retries of a copy, with their growing delays; the third is left to the next run.
SOON_SECONDS = 15.0

# A slot also keeps VACUUM from cleaning the source's catalog, however little is written.
ERRORED_SLOT_SECONDS = 24 * 3600.0


def demotions(states: States) -> dict[TableName, Event]:
    """Returns the events for tables that a dead worker left in SyncWait or Catchup: back to FinishedCopy, *before any
    stream starts*."""
    return {
        table: Demoted(state.generation, state.phase.handover)
        for table, state in states.items()
        if isinstance(state.phase, SyncWait | Catchup)
    }


def dead_copies(states: States, live_attempts: Collection[int]) -> dict[TableName, Event]:
    """Returns the events for tables whose copy died without recording it: back to Init, under a new generation."""
    return {
        table: CopyDied(state.generation, state.attempt)
        for table, state in states.items()
        if isinstance(state.phase, DataSync) and state.attempt is not None and state.attempt not in live_attempts
    }


def lost_groups(states: States, slot_attempts: Collection[int]) -> dict[TableName, Event]:
    """Returns the events for copied tables whose group has no usable slot any more: they cannot catch up and are copied
    again."""
    return {
        table: GroupLost(state.generation, state.attempt)
        for table, state in states.items()
        if phase_name(state.phase) in CATCHING_UP and state.attempt is not None and state.attempt not in slot_attempts
    }


def due_retries(states: States, now: float, slot_attempts: Collection[int]) -> dict[TableName, Event]:
    """Returns the events for Errored tables whose retry is due. A timed retry is a rollback or a reset; it never skips
    changes."""
    return {
        table: Reset(state.generation)
        if state.phase.retry_policy.anew
        else RolledBack(state.generation, slot_alive=state.attempt in slot_attempts)
        for table, state in states.items()
        if isinstance(state.phase, Errored) and _due(state.phase, now)
    }


def _due(phase: Errored, now: float) -> bool:
    return phase.retry_policy.kind == "timed" and (phase.retry_policy.at or 0.0) <= now


def errored_holders(
    states: States, greedy: Collection[int], since: Mapping[TableName, float], now: float
) -> dict[TableName, Event]:
    """Returns the events for Errored tables that alone keep their group's slot, if the slot retains more WAL than it
    may (`greedy`), or if they have been Errored for longer than the slot may be kept: they are copied again instead.
    `since`: when each became Errored."""
    return {
        table: Reset(states[table].generation)
        for table in kept_for_errored(states)
        if states[table].attempt in greedy or since.get(table, now) + ERRORED_SLOT_SECONDS <= now
    }


def kept_for_errored(states: States) -> list[TableName]:
    """Returns the Errored tables that need the slot of their group, where no table of that group is catching up."""
    catching_up = {state.attempt for state in states.values() if phase_name(state.phase) in CATCHING_UP}
    return [
        table
        for table, state in states.items()
        if isinstance(state.phase, Errored) and needs_group_slot(state) and state.attempt not in catching_up
    ]


def marks(
    records: Mapping[TableName, TableRecord], places: Mapping[TableName, DestinationMetadata | None]
) -> dict[TableName, Boundary]:
    """Returns how far the destination was seen to have each table, which is at least the snapshot of its copy: the
    snapshot is recorded first."""
    snapshots = {table: place.snapshot for table, place in places.items() if place is not None}
    return {table: max(record.mark, snapshots.get(table, START)) for table, record in records.items()}


def known_positions(states: States, marks: Mapping[TableName, Boundary]) -> dict[TableName, Boundary]:
    """Returns the least position of each copied table, from the store alone: for destinations that keep no positions.
    The marks are those of the data that the tables have now, and not before its snapshot. (The boundary of FinishedCopy
    does not serve: a table that was truncated while it was copied is consistent only from there on.)"""
    least = {table: _least(state, marks.get(table, START)) for table, state in states.items()}
    return {table: boundary for table, boundary in least.items() if boundary is not None}


def set_back(
    states: States, positions: Mapping[TableName, Boundary], marks: Mapping[TableName, Boundary]
) -> list[TableName]:
    """Returns the followed tables that are before the position at which they were seen, or handed over: the destination
    was restored, and the changes that they lack since are in no slot. Must be called whenever positions are read: after
    the next write it can no longer be found."""
    least = known_positions({table: s for table, s in states.items() if phase_name(s.phase) in FOLLOWED}, marks)
    return sorted(table for table, position in positions.items() if table in least and position < least[table])


def set_back_while_catching_up(
    states: States, attempt: int, positions: Mapping[TableName, Boundary], marks: Mapping[TableName, Boundary]
) -> dict[TableName, Event]:
    """Returns the events for the same case among the tables of a group, whose slot was confirmed as far as their marks:
    they are copied again. The destination may even have been restored to a state before they were copied."""
    mine = {t: s for t, s in states.items() if phase_name(s.phase) in CATCHING_UP and s.attempt == attempt}
    least = known_positions(mine, marks)
    return {
        table: GroupLost(state.generation, attempt)
        for table, state in mine.items()
        if positions.get(table, START) < least[table]
    }


def written_and_not_noted(
    states: States, positions: Mapping[TableName, Boundary], marks: Mapping[TableName, Boundary]
) -> set[Boundary]:
    """Returns the positions of tables whose last write is not recorded in the store. A stream made that write, for a
    snapshot is recorded before it is published; so a transaction of the source ends there."""
    streamed = [table for table, state in states.items() if phase_name(state.phase) in CATCHING_UP | FOLLOWED]
    return {positions[table] for table in streamed if positions.get(table, START) > marks.get(table, START)}


def _least(state: TableState, mark: Boundary) -> Boundary | None:
    match state.phase:
        case FinishedCopy() | SyncWait() | Catchup() | Ready():
            return mark
        case SyncDone(_, position):
            return max(mark, position)
        case _:
            return None


def tables_to_copy(states: States) -> list[TableName]:
    return sorted(table for table, state in states.items() if isinstance(state.phase, Init))


def groups_to_catch_up(states: States, slot_attempts: Collection[int], running: Collection[int]) -> list[int]:
    """Returns the groups with a table to catch up, a slot, and no stream. A group that is still being copied waits for
    the whole copy. A group whose stream ended after it had asked for a target is included: otherwise the apply stream
    would wait for it in vain."""
    finished = {s.attempt for s in states.values() if phase_name(s.phase) in CATCHING_UP and s.attempt is not None}
    copying = {s.attempt for s in states.values() if isinstance(s.phase, DataSync)}
    return sorted((finished - copying - set(running)) & set(slot_attempts))


def slots_to_drop(states: States, slot_attempts: Collection[int], live_attempts: Collection[int]) -> list[int]:
    """Returns the group slots that no copy is using and no table needs. An Errored table still needs the slot of the
    group in which it failed."""
    needed = {state.attempt for state in states.values() if needs_group_slot(state)}
    return sorted(set(slot_attempts) - needed - set(live_attempts))


def groups_under_way(states: States, live_attempts: Collection[int]) -> int:
    """Returns how many groups are being copied or catch up, which `copy.table_workers` limits. A group of which only
    Errored tables are left holds a slot as well, but does not count: it may wait for a person, and the other groups
    must not wait with it."""
    return len(_groups(states, live_attempts))


def groups_before(attempt: int, states: States, live_attempts: Collection[int]) -> int:
    """Returns the same for groups that began before `attempt`. Of several that begin at once the earliest are
    admitted."""
    return sum(group < attempt for group in _groups(states, live_attempts))


def _groups(states: States, live_attempts: Collection[int]) -> set[int]:
    catching_up = {
        state.attempt
        for state in states.values()
        if state.attempt is not None and phase_name(state.phase) in CATCHING_UP
    }
    return set(live_attempts) | catching_up


def apply_slot_needed(states: States) -> bool:
    """Whether the apply slot holds history that no new slot could provide."""
    return any(past_init(state) for state in states.values())


def on_their_way(states: States, now: float) -> list[TableName]:
    """Returns the tables that are not Ready, and not Errored for longer than a bounded run waits."""
    return sorted(table for table, state in states.items() if _on_its_way(state.phase, now))


def _on_its_way(phase: Phase, now: float) -> bool:
    if isinstance(phase, Errored):
        return _due(phase, now + SOON_SECONDS)
    return not isinstance(phase, Ready)


# -- The position up to which the source's history was seen. -----------------------------------------------------------


def furthest_seen(store: StateStore) -> Boundary:
    """Returns how far the source's WAL was ever seen. Marks of tables that are to be copied again do not count: they
    may be of a history that was given up."""
    records = store.tables().values()
    marks = [record.mark for record in records]
    arrived = [record.state.phase.boundary for record in records if isinstance(record.state.phase, SyncDone)]
    return max([START, *marks, *arrived, *(seen.upto for seen in store.seen().values())])


# -- The states of all tables that the store has. ----------------------------------------------------------------------

CEILING = APPLY_CEILING


def states_of(store: Store) -> dict[TableName, TableState]:
    return {table: record.state for table, record in store.tables().items()}


# -- A position after all others. --------------------------------------------------------------------------------------

LATEST = Boundary((1 << 64) - 1)


# -- Why a table cannot be written. ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableFailure:
    """Why a table cannot be written: the content of its Errored phase."""

    reason: str
    solution: str | None = None
    retry_policy: RetryPolicy = RetryPolicy()


# -- The Errored phase for an error. -----------------------------------------------------------------------------------

RETRY_SECONDS = 30.0


def failure_of(error: PgetlError, now: float) -> TableFailure:
    """Returns the failure for the error. `now` is in seconds since the Unix epoch; a timed retry counts from it. A
    library may quote any bytes, and the state cannot store text with a zero byte, so these are removed."""
    policy = RetryPolicy.of(error.directive.retry, now + RETRY_SECONDS)
    return TableFailure(error.message.replace("\0", ""), error.remedy, policy)


# -- Tables that were changed at the source. ---------------------------------------------------------------------------
#
# A change that cannot be carried over makes the table Errored. With `resync = "on_incompatible_change"`, its retry is
# due at once and resets the table, as for any error of which a new copy is the remedy. A table that is altered again
# and again would be copied without end, so that the number of such copies is limited.

RESYNC_SECONDS = 3600.0
"""A table that came to Ready by such a copy is not copied by itself again for so long."""
RESYNCS_IN_A_ROW = 3
"""Of these copies none has brought the table to Ready."""
_BY_ITSELF = 'It is copied again by itself (resync = "on_incompatible_change"); readers keep the old data until then.'


def failure_of_table(store: StateStore, table: TableName, error: PgetlError) -> TableFailure:
    """Returns the failure of this table for the error, by what is declared about its alterations."""
    now = store.now()
    failure, record = failure_of(error, now), store.tables().get(table)
    declared = None if record is None else record.selection
    if error.kind is not ErrorKind.ALTERED or declared is None or declared.policy.resync == "manual":
        return failure
    if (why := _exhausted(store.history(table), now)) is not None:
        return replace(failure, solution=f"{why} {failure.solution}")
    return replace(failure, solution=_BY_ITSELF, retry_policy=RetryPolicy("timed", now, anew=True))


def _exhausted(history: Sequence[HistoryEntry], now: float) -> str | None:
    """Returns why the table is not copied by itself again; None if it is."""
    in_a_row, ready_since, was_reset = 0, None, False
    for entry in history:
        match entry.state.phase:
            case Errored(retry_policy=RetryPolicy(anew=True)):
                in_a_row, was_reset, ready_since = in_a_row + 1, True, None
            case Ready() if was_reset and ready_since is None:
                in_a_row, ready_since = 0, entry.at
            case _:
                continue
    if in_a_row >= RESYNCS_IN_A_ROW:
        return f"It was copied again by itself {in_a_row} times in a row, and never became Ready."
    if ready_since is not None and now < ready_since + RESYNC_SECONDS:
        ago = format_duration(now - ready_since)
        return f"It was Ready for {ago} since it was last copied again by itself, which is done once an hour."
    return None


def changed_at_source(
    table: TableName, destination: TableName, found: Sequence[str], why: str | None = None
) -> PgetlError:
    """Returns the error of a table that is no longer as it was when it was copied. `why`: why that is not carried over,
    as a part of a sentence."""
    because = "" if why is None else f" ({why})"
    return PgetlError(
        ErrorKind.ALTERED,
        f"{table} was changed at the source since it was copied: {', '.join(found)}{because}.",
        remedy=(
            f"Copy the table again: {reset_command(table)}. "
            "If pgetl did not make the destination's table, change its columns alike first."
        ),
        table=str(destination),
    )


def reset_command(table: TableName) -> str:
    return f"`pgetl reset FILE {shlex.quote(written(table))}`"
