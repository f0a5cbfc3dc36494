"""Three servers, a pipeline, and a plan that is carried out on them.

The rule that is checked: a table is equal to its source, or it is Errored for a reason that the plan has given. An
Errored table without a cause, a source that is refused its UPDATEs, a worker that ends by itself, and a table that is
copied anew without a cause are failures, too.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg

from airflow_provider_pgetl.testing.servers.postgres_servers import Databases, Server
from tests.edges.alters import Alter
from tests.edges.pipeline import PipelineOfEdges
from tests.edges.plan import (
    Check,
    Hold,
    KillWorker,
    Pause,
    Plan,
    Release,
    Restart,
    StartWorker,
    Step,
    StopWorker,
    Transaction,
)
from tests.edges.values import MADE
from tests.failures.pipeline import Said

# What transactions may run into: keys that are taken, values that a domain or a length refuses, a partition that is
# not there, locks of the transaction that is held.
_REFUSED = ("23", "22", "40P01", "55P03", "57014")
# What they may run into besides when an alteration before has failed, or was left out.
_WITHOUT_ALTERS = ("42", "2BP01", "55000", "3F000")
# UPDATE without a replica identity; with one that lacks a column of the row filter.
_BROKEN = ("55000", "42P10")
PATIENCE = 120.0


class Failure(AssertionError):
    """What the plan has found."""


@dataclass(frozen=True)
class Cause:
    """An alteration that was made, and the generation that its table had then."""

    step: int
    alter: Alter
    generation: int


class World:
    def __init__(self, plan: Plan, folder: Path, servers: tuple[Server, Server, Server], skipped: set[int]) -> None:
        self.plan = plan
        self.servers = dict(zip(("source", "destination", "state"), servers, strict=True))
        self.skipped = skipped
        self.pipeline = PipelineOfEdges(
            Databases(servers[0].create_database("source"), servers[1].create_database("destination")),
            servers[2].create_database("state"),
            folder,
            plan.managed,
            "\n".join(plan.declarations),
            plan.copy,
            plan.stream,
            plan.lake,
            plan.on_slot_lost,
        )
        self.at = -1
        self.log: list[str] = []
        self.causes: defaultdict[str, list[Cause]] = defaultdict(list)
        self.generations: dict[str, int] = {}
        self.truncated: set[str] = set()
        self.failed_alters = bool(skipped)
        self.outage = False
        self.marker = 0
        self.unequal: dict[str, str] = {}
        self._held: psycopg.Connection | None = None
        self._locks = False
        self._sessions: psycopg.Connection | None = None

    def tell(self, text: str) -> None:
        self.log.append(f"{time.strftime('%X')} step {self.at}: {text}")

    # -- carrying out -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        with self.pipeline.source.connect() as session:
            session.execute(MADE)
            for statement in self.plan.create:
                session.execute(statement.encode())
        self.start_worker()
        for number, step in enumerate(self.plan.steps):
            self.at = number
            if number not in self.skipped:
                self.carry_out(step)
        self.at = len(self.plan.steps)
        self._check(settled=True)
        self.settle()
        self.expect(not self._errored(), f"still Errored: {self._errored()}")

    def carry_out(self, step: Step) -> None:
        match step:
            case Transaction(statements, commits):
                self._transact(statements, commits)
            case Hold(statements):
                self._hold(statements)
            case Release(commits):
                self._release(commits)
            case Alter():
                self._alter(step)
            case Restart(which, how):
                self._restart(which, how)
            case KillWorker() | StopWorker():
                self._end_worker(step)
            case StartWorker():
                self._unlock()
                self.start_worker()
            case Pause(seconds):
                time.sleep(seconds)
            case Check(settled):
                self._check(settled)

    def expect(self, truth: object, what: str) -> None:
        if not truth:
            raise Failure(f"step {self.at}: {what}")

    # -- the source ---------------------------------------------------------------------------------------------------

    @property
    def _session(self) -> psycopg.Connection:
        if self._sessions is None or self._sessions.closed:
            self._sessions = self._connect()
        return self._sessions

    def _connect(self) -> psycopg.Connection:
        session = self.pipeline.source.connect(autocommit=False)
        session.execute("set lock_timeout = '1s'; set deadlock_timeout = '100ms'")
        session.commit()
        return session

    def _transact(self, statements: tuple[str, ...], commits: bool) -> None:
        session = self._session
        self._note_truncates(statements)
        try:
            _execute(session, statements)
            if commits:
                session.commit()
            else:
                session.rollback()
        except psycopg.Error as error:
            session.rollback()
            self._judge_refusal(error, statements)

    def _judge_refusal(self, error: psycopg.Error, statements: tuple[str, ...]) -> None:
        """What the source refuses is the application's mistake, or it is ours."""
        state = error.sqlstate or ""
        allowed = _REFUSED + (_WITHOUT_ALTERS if self.failed_alters else ())
        broken = state in _BROKEN and any(cause.alter.breaks for causes in self.causes.values() for cause in causes)
        self.expect(state.startswith(allowed) or broken, f"the source refuses: {error!r}\n{statements}")

    def _note_truncates(self, statements: tuple[str, ...]) -> None:
        self.truncated |= {found for text in statements for found in re.findall(r"^truncate edges\.(\w+)", text)}

    def _hold(self, statements: tuple[str, ...]) -> None:
        self._note_truncates(statements)
        self._locks = any(text.startswith("truncate ") for text in statements)
        self._held = self._connect()
        try:
            _execute(self._held, statements)
        except psycopg.Error as error:
            self._held.close()
            self._held = None
            self._judge_refusal(error, statements)

    def _release(self, commits: bool) -> None:
        held, self._held, self._locks = self._held, None, False
        if held is None:
            return
        with suppress(psycopg.Error):  # the server may have been restarted since
            if commits:
                held.commit()
            else:
                held.rollback()
        held.close()

    def _unlock(self) -> None:
        """A run does not begin while a table is locked."""
        if self._locks:
            self._release(commits=True)

    def _alter(self, alter: Alter) -> None:
        """What it may lead to is known before it happens: the worker may be quicker than we are."""
        before = self.pipeline.states()
        causes = [Cause(self.at, alter, before[name].generation if name in before else 0) for name in alter.tables]
        for name, cause in zip(alter.tables, causes, strict=True):
            self.causes[name].append(cause)
        try:
            if alter.alone:
                with self.pipeline.source.connect() as session:
                    session.execute("set lock_timeout = '1s'")
                    _execute(session, alter.statements)
            else:
                _execute(self._session, alter.statements)
                self._session.commit()
            self.tell(f"{alter.what}: {alter.statements}")
            if alter.reset:
                self._reset(alter.tables[0])
                self.causes[alter.tables[0]] += [replace(causes[0], generation=causes[0].generation + 1)]
        except psycopg.Error as error:
            self._session.rollback()
            self.failed_alters = True
            self.tell(f"refused {alter.what}: {error}")
            for name, cause in zip(alter.tables, causes, strict=True):
                self.causes[name].remove(cause)

    def _restart(self, which: str, how: str) -> None:
        server = self.servers[which]
        if which == "source":
            self._release(commits=True)
            self._session.close()
        self.outage = True
        self.tell(f"{how} {which}")
        if how == "kill":
            server.kill()
        else:
            server.stop(how, timeout=60)  # type: ignore[arg-type]  # the others are modes
        time.sleep(0.1)
        server.resume()

    # -- the worker ---------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        worker = self.pipeline.worker
        return worker is not None and worker.running

    def start_worker(self) -> None:
        """A run that has come to streaming. One that is refused is put right, and tried again."""
        if self.running:
            return
        if self.pipeline.worker is not None:
            self._judge_end(self.pipeline.worker.said)
        for _ in range(6):
            self.outage = False
            self.pipeline.worker = worker = self.pipeline.start("run")
            self._wait(lambda: self.pipeline.streams or not self.running, "it streams")
            if self.running:
                return
            self._judge_end(worker.said)
        self.expect(False, f"it does not come to streaming\n{self.last_said}")

    def _judge_end(self, said: Said) -> None:
        """Why a worker has ended that nobody has stopped."""
        self.pipeline.worker = None
        if said.code == 3:
            self._settle_refusal(said)
        else:
            self.expect(said.code == 1 and self.outage, f"the worker has ended by itself\n{said}")

    def _settle_refusal(self, said: Said) -> None:
        """A refusal names the tables, each of which the plan has given a cause. As a person does, then."""
        self.tell(f"refused to run: {said.err}")
        concerned = []
        for line in said.err.splitlines():
            causes = [
                (name, cause)
                for name in self.plan.names
                if re.search(rf"\b{name}(_\w+)?\b", line)
                for cause in self.causes[name]
                if cause.alter.refused and re.search(cause.alter.refused, line)
            ]
            self.expect(causes, f"a refusal to run without a cause: {line}")
            concerned += causes
            if "Changes may be missing" in line:
                for name in {name for name, _ in causes}:
                    self._reset(name)
        for name, cause in concerned:
            for statement in cause.alter.undo:
                with suppress(psycopg.Error):  # it may have been mended by now
                    self.pipeline.source.execute(statement)
                    self.tell(f"settled {name}: {statement}")

    def _end_worker(self, step: KillWorker | StopWorker) -> None:
        worker = self.pipeline.worker
        if worker is None:
            return
        if not worker.running:
            self._judge_end(worker.said)
            return
        self.pipeline.worker = None
        if isinstance(step, KillWorker):
            worker.kill()
        else:
            said = worker.stop(timeout=40)
            self.expect(said.code in (0, 4), f"stopped by SIGTERM\n{said}")

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        self.unequal = {}
        while not condition():
            late = time.monotonic() > deadline
            self.expect(not late, f"{what}: not within {PATIENCE} s\n{self.last_said}\n{self._told_unequal()}")
            time.sleep(0.1)

    @property
    def last_said(self) -> str:
        commands = self.pipeline.commands
        return str(commands[-1].said)[-6000:] if commands else ""

    def _check(self, settled: bool) -> None:
        raise NotImplementedError("see `checks`")


def _execute(session: psycopg.Connection, statements: tuple[str, ...]) -> None:
    for statement in statements:
        session.execute(statement.encode())
