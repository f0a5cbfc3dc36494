"""What has to be tidied or begun, judged from what is known: pure functions for prepare and for the running worker.

Nothing here acts. Each function answers from the tables' states, the slots that exist and the attempts alive; whoever
acts on an answer does so through the store's compare-and-set, so that an answer that is out of date does no harm.
Dropping a slot is no such thing: for `slots_to_drop` the slots are read first, then the attempts, the states last. A
slot is its attempt's until it is a table's, and when it is neither's it never will be again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_provider_pgetl.engine.phases import (
    CATCHING_UP,
    Catchup,
    CopyDied,
    DataSync,
    Demoted,
    Errored,
    Event,
    GroupLost,
    Init,
    Phase,
    Ready,
    Reset,
    RolledBack,
    SyncDone,
    SyncWait,
    TableState,
    needs_group_slot,
    past_init,
    phase_name,
)
from airflow_provider_pgetl.engine.positions import START, Boundary
from airflow_provider_pgetl.engine.tables import TableName

States = Mapping[TableName, TableState]

# Two retries of a copy, by their growing delays; the third is left to the next run.
SOON_SECONDS = 15.0


def demotions(states: States) -> dict[TableName, Event]:
    """SyncWait and Catchup that a dead worker left: back to FinishedCopy *before any stream starts*."""
    return {
        table: Demoted(state.generation, state.phase.handover)
        for table, state in states.items()
        if isinstance(state.phase, SyncWait | Catchup)
    }


def dead_copies(states: States, live_attempts: Collection[int]) -> dict[TableName, Event]:
    """Tables whose copy died without a word: back to Init, under a new generation."""
    return {
        table: CopyDied(state.generation, state.attempt)
        for table, state in states.items()
        if isinstance(state.phase, DataSync) and state.attempt is not None and state.attempt not in live_attempts
    }


def lost_groups(states: States, slot_attempts: Collection[int]) -> dict[TableName, Event]:
    """Copied tables whose group has no usable slot any more: they cannot catch up and are copied again."""
    return {
        table: GroupLost(state.generation, state.attempt)
        for table, state in states.items()
        if phase_name(state.phase) in CATCHING_UP and state.attempt is not None and state.attempt not in slot_attempts
    }


def due_retries(states: States, now: float, slot_attempts: Collection[int]) -> dict[TableName, Event]:
    """Errored tables whose time has come. A timed retry is a rollback, never a return past skipped changes."""
    return {
        table: RolledBack(state.generation, slot_alive=state.attempt in slot_attempts)
        for table, state in states.items()
        if isinstance(state.phase, Errored) and _due(state.phase, now)
    }


def _due(phase: Errored, now: float) -> bool:
    return phase.retry_policy.kind == "timed" and (phase.retry_policy.at or 0.0) <= now


def errored_holders(states: States, greedy: Collection[int]) -> dict[TableName, Event]:
    """Errored tables for whose sake alone a group's slot retains more WAL than it may: they are copied anew instead."""
    catching_up = {state.attempt for state in states.values() if phase_name(state.phase) in CATCHING_UP}
    return {
        table: Reset(state.generation)
        for table, state in states.items()
        if isinstance(state.phase, Errored)
        and needs_group_slot(state)
        and state.attempt in greedy
        and state.attempt not in catching_up
    }


def known_positions(states: States, marks: Mapping[TableName, Boundary]) -> dict[TableName, Boundary]:
    """Where followed tables stand at least, by the store alone: for destinations that cannot say. Nothing is said of a
    table that catches up: a mark may be of the generation before, and everything in its slot is applied once more."""
    least = {table: _least(state.phase, marks.get(table, START)) for table, state in states.items()}
    return {table: boundary for table, boundary in least.items() if boundary is not None}


def set_back(
    states: States, positions: Mapping[TableName, Boundary], marks: Mapping[TableName, Boundary]
) -> list[TableName]:
    """Followed tables that stand before where they were seen, or handed over: the destination was restored, and what
    they lack since is in no slot. To be asked whenever positions are read: after the next write nobody can tell."""
    least = known_positions(states, marks)
    return sorted(table for table, position in positions.items() if table in least and position < least[table])


def _least(phase: Phase, mark: Boundary) -> Boundary | None:
    match phase:
        case Ready():
            return mark
        case SyncDone(boundary):
            return max(mark, boundary)
        case _:
            return None


def tables_to_copy(states: States) -> list[TableName]:
    return sorted(table for table, state in states.items() if isinstance(state.phase, Init))


def groups_to_catch_up(states: States, slot_attempts: Collection[int], running: Collection[int]) -> list[int]:
    """Groups with a table to catch up, a slot, and no stream. A group whose copy goes on waits for all of it. One whose
    stream ended when it had asked for a target is among them: else the apply stream would wait for it in vain."""
    finished = {s.attempt for s in states.values() if phase_name(s.phase) in CATCHING_UP and s.attempt is not None}
    copying = {s.attempt for s in states.values() if isinstance(s.phase, DataSync)}
    return sorted((finished - copying - set(running)) & set(slot_attempts))


def slots_to_drop(states: States, slot_attempts: Collection[int], live_attempts: Collection[int]) -> list[int]:
    """Group slots that no copy is using and no table needs. An Errored table still needs the slot it errored on."""
    needed = {state.attempt for state in states.values() if needs_group_slot(state)}
    return sorted(set(slot_attempts) - needed - set(live_attempts))


def groups_under_way(states: States, live_attempts: Collection[int]) -> int:
    """How many groups are copied or catch up: what `copy.table_workers` bounds. One that only Errored tables are left
    of holds a slot as well, but does not count: it may wait for a person, and the others must not wait with it."""
    return len(_groups(states, live_attempts))


def groups_before(attempt: int, states: States, live_attempts: Collection[int]) -> int:
    """The same of those that began before `attempt`. Of several that begin at once the earliest find room."""
    return sum(group < attempt for group in _groups(states, live_attempts))


def _groups(states: States, live_attempts: Collection[int]) -> set[int]:
    catching_up = {
        state.attempt
        for state in states.values()
        if state.attempt is not None and phase_name(state.phase) in CATCHING_UP
    }
    return set(live_attempts) | catching_up


def apply_slot_needed(states: States) -> bool:
    """Whether history is in the apply slot that no new slot could bring back."""
    return any(past_init(state) for state in states.values())


def on_their_way(states: States, now: float) -> list[TableName]:
    """The tables that are not Ready, nor Errored for longer than a bounded run waits."""
    return sorted(table for table, state in states.items() if _on_its_way(state.phase, now))


def _on_its_way(phase: Phase, now: float) -> bool:
    if isinstance(phase, Errored):
        return _due(phase, now + SOON_SECONDS)
    return not isinstance(phase, Ready)
