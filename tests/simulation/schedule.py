"""Making schedules, running them, and making a failing one small."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from airflow_provider_pgetl.engine.model.phases import Errored
from airflow_provider_pgetl.engine.model.tables import TableName
from tests.simulation import people
from tests.simulation.history import Violation
from tests.simulation.invariants import Invariants, unfinished
from tests.simulation.processes import keep_running
from tests.simulation.world import Scenario, World
from tests.simulation.worlds import WORLDS, scenario_of

Step = tuple[str, int, bool]
_CALM_STEPS = 30_000
_TOLD = 300
_PEACE = (("applications", 0.03), ("clock", 0.01))
_STORM = (("applications", 0.06), ("clock", 0.03))


@dataclass(frozen=True, slots=True)
class Failure:
    """A schedule that broke something; `steps` are those that led there."""

    seed: int
    scenario: Scenario
    steps: tuple[Step, ...]
    what: str


def run_seed(seed: int, trace: list[str] | None = None, world: str = "any", **changes: Any) -> Failure | None:
    """The schedule of this seed; how it failed, if it did. `changes` are made to its scenario."""
    run = Run(seed, replace(scenario_of(seed), **{**WORLDS[world], **changes}), trace)
    try:
        return run.chaos(run.drawn_steps()) or run.settle()
    finally:
        run.world.close()


def replay(failure: Failure, steps: Iterable[Step], trace: list[str] | None = None) -> Failure | None:
    """The same world, with other steps."""
    run = Run(failure.seed, failure.scenario, trace)
    try:
        return run.chaos(steps) or run.settle()
    finally:
        run.world.close()


class Run:
    """One world, from its beginning to its happy or other end."""

    def __init__(self, seed: int, scenario: Scenario, trace: list[str] | None) -> None:
        self.seed = seed
        self.world = World(scenario, trace=trace)
        self.invariants = Invariants(self.world)
        self.taken: list[Step] = []
        self._populate()

    def _populate(self) -> None:
        world = self.world
        for name in people.WORKERS[: world.scenario.workers]:
            keep_running(world, name)
        for name, actor in (
            ("applications", people.applications(world)),
            ("clock", people.clock(world)),
            ("network", people.network(world)),
            ("operator", people.operator(world)),
            ("mishaps", people.mishaps(world)),
            ("mender", people.mender(world)),
        ):
            world.spawn(name, actor)

    def drawn_steps(self) -> Iterator[Step]:
        """Who acts next is drawn from those who can. Peace and storm take turns: deep states need some peace to be
        reached, and then a storm to be tried."""
        random = Random(self.seed)
        left = self.world.scenario.steps
        peace = random.random() < 0.8
        while left > 0:
            length = min(left, random.choice([60, 200, 500]))
            for _ in range(length):
                yield self._drawn(random, peace), random.getrandbits(32), peace
            left -= length
            peace = not peace

    @property
    def _storm(self) -> tuple[tuple[str, float], ...]:
        scenario = self.world.scenario
        return (*_STORM, ("network", scenario.arrivals), ("mishaps", scenario.trouble))

    def _drawn(self, random: Random, peace: bool) -> str:
        drawn = random.random()
        for name, share in _PEACE if peace else self._storm:
            if drawn < share:
                return name
            drawn -= share
        if not peace and drawn < self.world.scenario.operator:
            return "operator"
        able = self.world.able()
        return random.choice(able) if able else "clock"

    def chaos(self, steps: Iterable[Step]) -> Failure | None:
        with heard(self.world):
            for step in steps:
                self.taken.append(step)
                name, drawn, self.world.calm = step
                failure = self._step(name, drawn)
                if failure is not None:
                    return failure
        return None

    def _step(self, name: str, seed: int) -> Failure | None:
        try:
            self.world.step(name, seed)
            self.invariants.check()
        except Violation as violation:
            return self._failure(str(violation))
        except Exception as defect:  # whatever the code under test raises is a finding, with its place
            return self._failure("".join(traceback.format_exception(defect)[-4:]))
        return None if self.world.violation is None else self._failure(self.world.violation)

    def _failure(self, what: str) -> Failure:
        self.world.note(f"=> {what}")
        return Failure(self.seed, self.world.scenario, tuple(self.taken), what)

    # -- the happy end ------------------------------------------------------------------------------------------------

    def settle(self) -> Failure | None:
        """Nothing goes wrong any more: the tables that wait for a person may wait, all others must get there."""
        world = self.world
        world.calm = True
        world.paused.clear()
        world.outages.clear()
        if world.durable.view.pipeline.paused is not None:
            world.open_store().set_paused(False)
        world.destination.poison.clear()
        if world.restored:
            # Who restores a destination starts the pipeline again: a quiet worker would not notice.
            for name in people.WORKERS:
                people.crash(world, name)
        with heard(world):
            return self._settle(mended=False) or self._settle(mended=True)

    def _settle(self, *, mended: bool) -> Failure | None:
        """Whoever can acts, and time passes when nobody can."""
        world = self.world
        world.note("calm" if not mended else "somebody looks after the errors")
        random = Random(self.seed)
        missing: list[str] = []
        for number in range(_CALM_STEPS):
            if number % 25 == 0:
                missing = list(unfinished(world, set() if mended else _waiting_for_a_person(world)))
                if not missing and not world.on_the_way:
                    return None
            failure = self._step(self._next(random, mended), random.getrandbits(32))
            if failure is not None:
                return failure
        return self._failure("stuck: " + "; ".join(missing))

    def _next(self, random: Random, mended: bool) -> str:
        if self.world.on_the_way and random.random() < 0.05:
            return "network"
        if mended and random.random() < 0.01:
            return "mender"
        able = self.world.able()
        return random.choice(able) if able else "clock"


@contextmanager
def heard(world: World) -> Iterator[None]:
    """What the shell logs as an error is one: a defect that it has caught."""
    logger = logging.getLogger("airflow_provider_pgetl")
    ear = _Ear(world)
    level, logger.propagate = logger.level, False
    logger.setLevel(logging.ERROR)
    logger.addHandler(ear)
    try:
        yield
    finally:
        logger.removeHandler(ear)
        logger.setLevel(level)
        logger.propagate = True


class _Ear(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.violation = self._world.violation or f"{self.format(record)}"


def _waiting_for_a_person(world: World) -> set[TableName]:
    return {
        table
        for table, state in world.states.items()
        if isinstance(state.phase, Errored) and state.phase.retry_policy.kind != "timed"
    }


def shrink(failure: Failure, patience: int = 600) -> Failure:
    """Leave out as many steps as can be left out while it still fails, largest pieces first."""
    best, left = failure, patience
    size = max(1, len(best.steps) // 2)
    while left > 0:
        smaller, left = _without_pieces(best, size, left)
        if size == 1 and smaller is best:
            break
        best, size = smaller, max(1, size // 2)
    return best


def _without_pieces(failure: Failure, size: int, left: int) -> tuple[Failure, int]:
    best, start = failure, 0
    while start < len(best.steps) and left > 0:
        left -= 1
        found = replay(best, best.steps[:start] + best.steps[start + size :])
        if found is not None and _alike(found, failure):
            best = found
        else:
            start += size
    return best, left


def _alike(one: Failure, other: Failure) -> bool:
    return one.what.startswith("stuck") == other.what.startswith("stuck")


def told(failure: Failure) -> str:
    """The trace of a failing schedule, one line per thing that happened."""
    trace: list[str] = []
    replay(failure, failure.steps, trace)
    scenario = failure.scenario
    if len(trace) > _TOLD:
        trace[_TOLD // 2 : -_TOLD // 2] = ["..."]
    head = f"seed {failure.seed}: {failure.what}\n{scenario}\n"
    return head + "\n".join(trace)
