"""Threads that take turns: each is a greenlet, and runs until it waits for something. Who goes on then is drawn by the
schedule, and time is a number that the schedule moves.

A process that is killed ends between two steps of its threads. They are unwound, as Python would have them, but nothing
that they still try takes effect: whatever goes through the runtime, or to a server, raises `Killed` again.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, getcurrent, greenlet

if TYPE_CHECKING:
    from tests.simulation.world import World

Ready = Callable[[], bool]


class Killed(GreenletExit):
    """The process of this thread is no more."""


@dataclass(eq=False)
class Process:
    """One run of a program. `place` is the name under which it is started again."""

    place: str
    number: int
    dead: bool = False
    children: list[SimFlag] = field(default_factory=list)
    stop: SimFlag | None = None

    def __str__(self) -> str:
        return f"{self.place}#{self.number}"

    def expect_alive(self) -> None:
        if self.dead:
            raise Killed


def always() -> bool:
    return True


def never() -> bool:
    return False


@dataclass(eq=False)
class Task:
    """A thread. It can go on when it is `ready`, or its `deadline` has come."""

    name: str
    process: Process
    glet: greenlet
    ready: Ready = always
    deadline: float = float("inf")


class Scheduler:
    """The threads of all processes. Time is the world's."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.tasks: dict[str, Task] = {}
        self.running: Task | None = None
        self._hub = getcurrent()

    def spawn(self, process: Process, name: str, work: Callable[[], None]) -> Task:
        full, number = f"{process.place}/{name}", 2
        while full in self.tasks:
            full, number = f"{process.place}/{name}.{number}", number + 1
        task = Task(full, process, greenlet(work, self._hub))
        self.tasks[full] = task
        return task

    def block(self, process: Process, ready: Ready, timeout: float | None) -> None:
        """Let others go on, until it is ready or time is up."""
        process.expect_alive()
        task = self.running
        assert task is not None, "only threads wait"
        task.ready = ready
        task.deadline = float("inf") if timeout is None else self.now + max(0.0, timeout)
        self._hub.switch()
        process.expect_alive()

    def can_go_on(self, task: Task) -> bool:
        return task.deadline <= self.now or task.ready()

    def resume(self, task: Task) -> None:
        """Until it waits again, or ends; raises what it did not catch."""
        self.running = task
        try:
            task.glet.switch()
        finally:
            self.running = None
            if task.glet.dead:
                self.tasks.pop(task.name, None)

    def kill(self, process: Process) -> None:
        process.dead = True
        for task in [task for task in self.tasks.values() if task.process is process]:
            self.running = task
            with suppress(Exception):  # of threads that had not come to their beginning, as of no process any more
                task.glet.throw(Killed)
            self.tasks.pop(task.name, None)
        self.running = None


class SimFlag:
    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        self._world.block(self._process, self.is_set, timeout)
        return self._set


class SimLock:
    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._held = False

    def __enter__(self) -> bool:
        while self._held:
            self._world.block(self._process, lambda: not self._held, None)
        self._held = True
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._held = False


class SimQueue:
    """Who puts something may be overtaken right away by who takes it."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._items: deque[Any] = deque()

    def put(self, item: Any, /) -> None:
        self._process.expect_alive()
        self._items.append(item)
        if self._world.scheduler.running is not None and self._world.random.random() < 0.1:
            self._world.block(self._process, always, None)

    def get(self, *, timeout: float | None = None) -> Any:
        if not self._items:
            self._world.block(self._process, lambda: bool(self._items), timeout)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class SimThread:
    def __init__(self, world: World, process: Process, work: Callable[[], None], name: str) -> None:
        self._world = world
        self._process = process
        self._work = work
        self._name = name.removeprefix("pgetl ").replace(" ", "-")
        self._task: Task | None = None

    def start(self) -> None:
        self._process.expect_alive()
        self._task = self._world.scheduler.spawn(self._process, self._name, self._work)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.glet.dead

    def join(self, timeout: float | None = None) -> None:
        self._world.block(self._process, lambda: not self.is_alive(), timeout)


class SimRuntime:
    """The `Runtime` of one simulated process."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def monotonic(self) -> float:
        return self._world.now

    def sleep(self, seconds: float) -> None:
        self._world.block(self._process, never, seconds)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    @property
    def _random(self) -> Random:
        return self._world.random

    def flag(self) -> SimFlag:
        return SimFlag(self._world, self._process)

    def lock(self) -> SimLock:
        return SimLock(self._world, self._process)

    def queue(self) -> SimQueue:
        return SimQueue(self._world, self._process)

    def thread(self, work: Callable[[], None], name: str) -> SimThread:
        return SimThread(self._world, self._process, work, name)

    def process(self) -> str:
        return str(self._process)

    def is_gone(self, process: str) -> bool:
        """Of processes on other machines nothing can be known."""
        return self._world.scenario.one_machine and process in self._world.gone
