"""The phases of a table, and the one function that moves a table between them.

`transition(state, event)` is pure and total: it returns the next state, or a `Refused` with the reason. No other code
decides which phase may follow which. The store applies it under a row lock (compare-and-set on the generation that the
event names), so that every change of a phase, by a person or by a worker, is decided here.

Rules
* An event of another generation is refused: the table was rolled back or reset since its sender last read it.
* Events are idempotent: for an event that has already taken effect the state is returned unchanged, because an answer
  of the store may be lost and the event sent again.
* A hand-over that was given up is void: `handover` numbers the hand-overs of a table's generation, and an event of an
  earlier one is refused. Otherwise a target that was chosen long ago, and arrives only now, would be taken for one at
  which the apply stream is waiting.
* A copy attempt is superseded only by a *later* attempt; events of a superseded attempt are refused.
* A rollback goes to the last phase from which it is safe to go on: to Init before publication, to FinishedCopy until
  the hand-over, and to Init again from SyncDone on, because from there on the apply stream may have written.

Time, slots and leases are deliberately not considered: whether a process may send an event is decided by that process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from airflow_provider_pgetl.engine.model.errors import Retry
from airflow_provider_pgetl.engine.model.positions import Boundary

PhaseName = Literal["Init", "DataSync", "FinishedCopy", "SyncWait", "Catchup", "SyncDone", "Ready", "Errored"]
RetryKind = Literal["timed", "manual", "none"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How an Errored phase ends: by a timer (`at`, seconds since the Unix epoch), by a person, or not at all. `anew`:
    the timer resets the table, because the table failed at the changes with which a rollback would go on."""

    kind: RetryKind = "manual"
    at: float | None = None
    anew: bool = False

    @classmethod
    def of(cls, retry: Retry, due: float) -> RetryPolicy:
        """Returns what a directive prescribes for an Errored table. `due`: when a timed retry is. A transient error has
        outlasted all patience by then, so its retry is timed as well."""
        match retry:
            case "in_place" | "timed":
                return cls("timed", due)
            case "copy":
                return cls("timed", due, anew=True)
            case "manual" | "none":
                return cls(retry)


# -- phases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Init:
    """Declared, nothing copied."""


@dataclass(frozen=True, slots=True)
class DataSync:
    """A copy is running from a fresh snapshot."""


@dataclass(frozen=True, slots=True)
class FinishedCopy:
    """The copy is published in the destination; with the changes up to `boundary` it is consistent. `boundary` is the
    snapshot's consistent point, or, where the table was truncated while it was copied, the end of such a TRUNCATE.
    `handover` is the number of the next hand-over, which is not before `boundary`."""

    boundary: Boundary
    handover: int = 1


@dataclass(frozen=True, slots=True)
class SyncWait:
    """The catch-up stream has come near the apply stream, is at `position`, and has asked for a target: a boundary to
    stop at."""

    position: Boundary
    handover: int = 1


@dataclass(frozen=True, slots=True)
class Catchup:
    """The catch-up stream is to reach the target `boundary`, at which the apply stream waits."""

    boundary: Boundary
    handover: int = 1


@dataclass(frozen=True, slots=True)
class SyncDone:
    """Everything before `boundary` is durable; changes from there on belong to the apply stream. In the destination the
    table is at `position`, where its last change or its copy was written; from there to `boundary` it has no
    changes."""

    boundary: Boundary
    position: Boundary


@dataclass(frozen=True, slots=True)
class Ready:
    """The apply stream owns the table."""


@dataclass(frozen=True, slots=True)
class Errored:
    """The table is excluded from replication until it is rolled back, by a person or by a timed retry."""

    reason: str
    solution: str | None = None
    retry_policy: RetryPolicy = RetryPolicy()
    from_phase: PhaseName = "Init"


Phase = Init | DataSync | FinishedCopy | SyncWait | Catchup | SyncDone | Ready | Errored


@dataclass(frozen=True, slots=True)
class TableState:
    """A table's phase with what outlives a phase.

    `generation` rises with every rollback and reset. `attempt` is the copy attempt that the table's data comes from,
    and so names its sync group and the group's slot; `copied` is the boundary of that copy's FinishedCopy.
    """

    phase: Phase = Init()
    generation: int = 1
    attempt: int | None = None
    copied: Boundary | None = None


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyStarted:
    """`over`: the attempt that the table had when its sender read it, 0 for none; the event takes the table from no
    other attempt. None: from any earlier attempt."""

    generation: int
    attempt: int
    over: int | None = None


@dataclass(frozen=True, slots=True)
class CopyFinished:
    """The table is published; from `boundary` on it can equal the source."""

    generation: int
    attempt: int
    boundary: Boundary


@dataclass(frozen=True, slots=True)
class CameNear:
    """The catch-up stream asks for a target."""

    generation: int
    position: Boundary
    handover: int = 1


@dataclass(frozen=True, slots=True)
class TargetChosen:
    """The apply stream has stopped and names the target."""

    generation: int
    boundary: Boundary
    handover: int = 1


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The catch-up stream is durable up to `boundary`, which is at or beyond the target; the table is at `position`."""

    generation: int
    boundary: Boundary
    position: Boundary
    handover: int = 1


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The apply stream has itself passed the hand-over's boundary, durably."""

    generation: int
    boundary: Boundary


@dataclass(frozen=True, slots=True)
class Demoted:
    """The catch-up stream that had asked for a target has ended; catch-up starts again from FinishedCopy."""

    generation: int
    handover: int = 1


@dataclass(frozen=True, slots=True)
class Failed:
    """`attempt`: the copy attempt that failed; the event is refused if that attempt was superseded. None: the event
    comes from the stream of the table."""

    generation: int
    reason: str
    solution: str | None = None
    retry_policy: RetryPolicy = RetryPolicy()
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class CopyDied:
    """The copy attempt has died. The table goes back to Init, unless it was published after all."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class GroupLost:
    """The changes since the copy are kept nowhere any more. The table goes back to Init, unless it was handed over
    after all."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The table goes back to the last safe phase. `slot_alive`: whether the sync group's slot still holds what catch-up
    needs. `only`: the phases from which the table is rolled back; None: from any phase."""

    generation: int
    slot_alive: bool = True
    only: frozenset[PhaseName] | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """The table goes back to Init, from any phase."""

    generation: int


Event = (
    CopyStarted
    | CopyFinished
    | CopyDied
    | GroupLost
    | CameNear
    | TargetChosen
    | CaughtUp
    | TakenOver
    | Demoted
    | Failed
    | RolledBack
    | Reset
)


@dataclass(frozen=True, slots=True)
class Refused:
    """The event does not apply; `why` is a sentence for a log."""

    why: str


# -- the function -----------------------------------------------------------------------------------------------------


def transition(state: TableState, event: Event) -> TableState | Refused:
    """Returns the state after `event`, the same state if the event has already taken effect, or a refusal."""
    if event.generation != state.generation:
        return Refused(f"generation {event.generation} was superseded by {state.generation}")
    match event:
        case CopyStarted():
            return _start_copy(state, event)
        case CopyFinished():
            return _finish_copy(state, event)
        case CopyDied() | GroupLost():
            return _give_up(state, event)
        case CameNear() | TargetChosen() | CaughtUp() | TakenOver():
            return _hand_over(state, event)
        case Demoted():
            return _demote(state, event)
        case Failed():
            return _fail(state, event)
        case RolledBack():
            return _roll_back(state, event)
        case Reset():
            return _restart(state, slot_alive=False)


def _start_copy(state: TableState, event: CopyStarted) -> TableState | Refused:
    if not isinstance(state.phase, Init | DataSync):
        return _refuse(state, event)
    if state.attempt is not None and event.attempt < state.attempt:
        return Refused(f"copy attempt {event.attempt} was superseded by {state.attempt}")
    if event.over is not None and state.attempt not in (None, event.attempt, event.over):
        return Refused(f"copy attempt {state.attempt} has it already")
    return replace(state, phase=DataSync(), attempt=event.attempt, copied=None)


def _finish_copy(state: TableState, event: CopyFinished) -> TableState | Refused:
    if event.attempt != state.attempt:
        return Refused(f"copy attempt {event.attempt} was superseded by {state.attempt}")
    if isinstance(state.phase, DataSync):
        return replace(state, phase=FinishedCopy(event.boundary), copied=event.boundary)
    done = state.copied == event.boundary and not isinstance(state.phase, Errored)
    return state if done else _refuse(state, event)


def _give_up(state: TableState, event: CopyDied | GroupLost) -> TableState | Refused:
    """The sender may have read the state a while ago: the table is copied again only if it still is in such a phase."""
    concerned = COPYING if isinstance(event, CopyDied) else CATCHING_UP
    if event.attempt == state.attempt and phase_name(state.phase) in concerned:
        return _restart(state, slot_alive=False)
    return _refuse(state, event)


def _hand_over(state: TableState, event: CameNear | TargetChosen | CaughtUp | TakenOver) -> TableState | Refused:
    match state.phase, event:
        case FinishedCopy(copied, now), CameNear(_, position, spoken) if position >= copied and spoken == now:
            return replace(state, phase=SyncWait(position, now))
        case SyncWait(position, now), CameNear(_, again, spoken) if (again, spoken) == (position, now):
            return state
        case SyncWait(position, now), TargetChosen(_, target, spoken) if target >= position and spoken == now:
            return replace(state, phase=Catchup(target, now))
        case Catchup(target, now), TargetChosen(_, again, spoken) if (again, spoken) == (target, now):
            return state
        case Catchup(target, now), CaughtUp(_, reached, position, spoken) if reached >= target and spoken == now:
            return replace(state, phase=SyncDone(reached, position)) if position <= reached else _refuse(state, event)
        case SyncDone(reached), CaughtUp(_, again) if again == reached:
            return state
        case SyncDone(reached), TakenOver(_, passed) if passed >= reached:
            return replace(state, phase=Ready())
        case Ready(), TakenOver():
            return state
        case _:
            return _refuse(state, event)


def _demote(state: TableState, event: Demoted) -> TableState | Refused:
    match state.phase:
        case SyncWait(handover=now) | Catchup(handover=now) if now == event.handover and state.copied is not None:
            return replace(state, phase=FinishedCopy(state.copied, now + 1))
        case FinishedCopy(handover=now) if now in (event.handover, event.handover + 1):
            return state
        case _:
            return _refuse(state, event)


def _fail(state: TableState, event: Failed) -> TableState | Refused:
    if event.attempt is not None and event.attempt != state.attempt:
        return Refused(f"copy attempt {event.attempt} was superseded by {state.attempt}")
    if isinstance(state.phase, Errored):
        return state
    phase = Errored(event.reason, event.solution, event.retry_policy, phase_name(state.phase))
    return replace(state, phase=phase)


def _roll_back(state: TableState, event: RolledBack) -> TableState | Refused:
    if event.only is not None and phase_name(state.phase) not in event.only:
        return _refuse(state, event)
    return _restart(state, event.slot_alive)


def _restart(state: TableState, slot_alive: bool) -> TableState:
    """Returns a new generation at the last safe phase; at Init whenever the slot cannot serve a catch-up."""
    generation = state.generation + 1
    origin = state.phase.from_phase if isinstance(state.phase, Errored) else phase_name(state.phase)
    if slot_alive and origin in CATCHING_UP and state.copied is not None:
        return replace(state, phase=FinishedCopy(state.copied), generation=generation)
    return TableState(phase=Init(), generation=generation)


def _refuse(state: TableState, event: Event) -> Refused:
    return Refused(f"{type(event).__name__} does not apply to a table in {phase_name(state.phase)}")


# -- predicates -------------------------------------------------------------------------------------------------------

CATCHING_UP: frozenset[PhaseName] = frozenset({"FinishedCopy", "SyncWait", "Catchup"})
COPYING: frozenset[PhaseName] = frozenset({"Init", "DataSync"})
FOLLOWED: frozenset[PhaseName] = frozenset({"SyncDone", "Ready"})
ERRORED: frozenset[PhaseName] = frozenset({"Errored"})


def phase_name(phase: Phase) -> PhaseName:
    return type(phase).__name__  # type: ignore[return-value]


def needs_group_slot(state: TableState) -> bool:
    """Whether the slot of the table's sync group still holds changes that no other stream will deliver."""
    name = state.phase.from_phase if isinstance(state.phase, Errored) else phase_name(state.phase)
    return name in CATCHING_UP


def handover_of(state: TableState) -> int:
    """Returns the number of the hand-over that is under way, or of the next one."""
    return state.phase.handover if isinstance(state.phase, FinishedCopy | SyncWait | Catchup) else 1


def is_followed(state: TableState) -> bool:
    """Whether the apply stream owns the table, or did when it became Errored."""
    name = state.phase.from_phase if isinstance(state.phase, Errored) else phase_name(state.phase)
    return name in FOLLOWED


def past_init(state: TableState) -> bool:
    """Whether the table depends on history that the apply slot keeps."""
    name = state.phase.from_phase if isinstance(state.phase, Errored) else phase_name(state.phase)
    return name not in COPYING


# -- JSON -------------------------------------------------------------------------------------------------------------


def phase_to_json(phase: Phase) -> dict[str, Any]:
    data: dict[str, Any] = {"phase": phase_name(phase)}
    match phase:
        case FinishedCopy(boundary, handover) | Catchup(boundary, handover):
            data |= {"boundary": str(boundary), "handover": handover}
        case SyncWait(position, handover):
            data |= {"position": str(position), "handover": handover}
        case SyncDone(boundary, position):
            data |= {"boundary": str(boundary), "position": str(position)}
        case Errored(reason, solution, retry, origin):
            data |= {"reason": reason, "solution": solution, "from_phase": origin}
            data["retry_policy"] = {"kind": retry.kind, "at": retry.at, "anew": retry.anew}
        case _:
            pass
    return data


def phase_from_json(data: dict[str, Any]) -> Phase:
    match data["phase"]:
        case "FinishedCopy":
            return FinishedCopy(Boundary.parse(data["boundary"]), data.get("handover", 1))
        case "SyncWait":
            return SyncWait(Boundary.parse(data["position"]), data.get("handover", 1))
        case "Catchup":
            return Catchup(Boundary.parse(data["boundary"]), data.get("handover", 1))
        case "SyncDone":
            return SyncDone(Boundary.parse(data["boundary"]), Boundary.parse(data["position"]))
        case "Errored":
            retry = RetryPolicy(**data["retry_policy"])
            return Errored(data["reason"], data["solution"], retry, data["from_phase"])
        case "DataSync":
            return DataSync()
        case "Ready":
            return Ready()
        case _:
            return Init()
