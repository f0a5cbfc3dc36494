"""The programs: a run of the pipeline, its copies, a person's command. All of them are what ships; only what they reach
the servers by, and how they are started, is the simulation's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyResult
from airflow_provider_pgetl.engine.config.spec import (
    CopySpec,
    DestinationSpec,
    PipelineSpec,
    SourceSpec,
    StreamSpec,
    TableSpec,
)
from airflow_provider_pgetl.engine.context import PipelineContext, SourceServer
from airflow_provider_pgetl.engine.copy import attempt
from airflow_provider_pgetl.engine.copy.admission import Launch
from airflow_provider_pgetl.engine.destinations.protocol import Destination
from airflow_provider_pgetl.engine.model.errors import ErrorData, ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import Noted, Report
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.engine.prepare.destination_checks import expect_ours
from airflow_provider_pgetl.engine.prepare.preparation import (
    Prepared,
    bring_together,
    copy_of,
    expect_the_same_source,
    size_of,
)
from airflow_provider_pgetl.engine.source.matching import Candidate, CandidateLeaf, Match, RoleAccess
from airflow_provider_pgetl.engine.source.published import Namespace
from airflow_provider_pgetl.engine.source.relations import SourceRelation
from airflow_provider_pgetl.engine.state.store import Store
from tests.simulation import store as store_module
from tests.simulation.servers import BLOCK, Ranges, SimSession, SourceClient, identity_of, leaf_of
from tests.simulation.threads import Process, SimRuntime, never
from tests.simulation.world import PIPELINE

if TYPE_CHECKING:
    from tests.simulation.world import World

_PAUSE = 1.0
_SET_BACK = (ErrorKind.LINEAGE, ErrorKind.SLOT_LOST)


def keep_running(world: World, place: str) -> None:
    """A worker, and after its end the next one in its place."""
    keeper = Process(f"keeper-{place}", 0)

    def once() -> None:
        process = world.start(place, lambda process: run(world, process))
        world.block(keeper, lambda: process.dead, None)
        world.block(keeper, never, _PAUSE + world.random.random())

    def keep() -> None:
        while True:
            once()

    world.scheduler.spawn(keeper, "main", keep)


def run(world: World, process: Process) -> None:
    """`pgetl run`."""
    pipeline = SimPipeline(world, process)
    stop = SimRuntime(world, process).flag()
    process.stop = stop
    began = Boundary(world.source.lsn)
    try:
        pipeline.run(until_caught_up=world.scenario.bounded, stop=stop)
        if world.scenario.bounded and not stop.is_set():
            world.expect_caught_up(process, began, pipeline.store.tables())
    except PgetlError as error:
        if error.kind is ErrorKind.INTERNAL:
            world.violate(f"{process} met a defect: {error}")
        raise


class SimContext(PipelineContext):
    """Source and destination are those of the world in which its runtime runs."""

    @property
    def source(self) -> SourceServer:
        runtime = cast(SimRuntime, self.runtime)
        return SourceClient(runtime._world, runtime._process)

    def open_destination(self, worker: str) -> Destination:
        del worker
        runtime = cast(SimRuntime, self.runtime)
        return runtime._world.open_destination(runtime._process)


class SimPipeline(Pipeline):
    def __init__(self, world: World, process: Process) -> None:
        super().__init__(spec_of(world), lambda report: _observe(world, report), {})
        self._world = world
        self._process = process

    @cached_property
    def store(self) -> Store:  # type: ignore[override]
        return store_module.client(self._world, self._process)

    @cached_property
    def _context(self) -> PipelineContext:  # type: ignore[override]
        return SimContext(
            self.spec, self.store, self._observer, "", None, {}, runtime=SimRuntime(self._world, self._process)
        )

    @property
    def _lands(self) -> bool:
        return False

    def prepare(self, *, streaming: bool = True) -> Prepared:
        """Without what needs the source's catalog."""
        context, world = self._context, self._world
        unjudged = world.unjudged
        candidates = tuple(_candidate(world, table) for table in world.tables)
        self._expect_ours(context)
        with self._refused_for(*_SET_BACK), context.source.session("prepare") as session:
            expect_the_same_source(context, session, candidates)
            cast(SimSession, session).publish(world.tables)
            publications = session.publications(context.publications)
            bring_together(context, session, candidates, tuple(publications), streaming=streaming)
        world.refusals = 0
        if unjudged == world.unjudged:
            world.unjudged = 0
        return Prepared(
            {one.table: copy_of(context, one) for one in candidates}, {one.table: size_of(one) for one in candidates}
        )

    def _expect_ours(self, context: PipelineContext) -> None:
        with self._refused_for(ErrorKind.PREFLIGHT):
            expect_ours(context, context.open_destination("prepare"))

    @contextmanager
    def _refused_for(self, *kinds: ErrorKind) -> Iterator[None]:
        try:
            yield
        except PgetlError as error:
            self._world.refusals += error.kind in kinds
            raise

    def _launch(self) -> Launch:
        return lambda job: SimCopy(self._world, self._process, job)


def spec_of(world: World) -> PipelineSpec:
    stream = StreamSpec()
    object.__setattr__(stream, "memory", world.scenario.memory)  # less than anybody may declare
    return PipelineSpec(
        PIPELINE,
        tuple(TableSpec(str(table)) for table in world.tables),
        SourceSpec("env:SOURCE", on_slot_lost=world.scenario.on_slot_lost),
        DestinationSpec("memory"),
        copy=CopySpec(table_workers=world.scenario.copies, range_bytes=BLOCK, group_bytes=4 * BLOCK),
        stream=stream,
    )


def _candidate(world: World, table: TableName) -> Candidate:
    schema = world.source.schemas[table]
    access = RoleAccess(Namespace(2200), "o", True, True, True, False, (), frozenset(), frozenset(), frozenset())
    identity = identity_of(schema)
    match = Match(SourceRelation(table, schema.relation), TableSpec(str(table)))
    return Candidate(match, identity, access, (CandidateLeaf(leaf_of(schema.relation, table), identity, access),))


def _observe(world: World, report: Report) -> None:
    if world.trace is not None and isinstance(report, Noted):
        world.note(f"says: {report.message}")


class SimCopy:
    """A copy in a process of its own, which stops when the one that has begun it is no more."""

    def __init__(self, world: World, parent: Process, job: CopyJob) -> None:
        self._world = world
        self._parent = parent
        self._job = job
        self._result: CopyResult | None = None
        numbers = (number for number in range(1, 100) if f"copy-{number}" not in world.processes)
        self._process = world.start(f"copy-{next(numbers)}", self._run)
        self._stop = SimRuntime(world, self._process).flag()
        parent.children.append(self._stop)

    def wait(self, timeout: float | None = None) -> CopyResult | None:
        if timeout != 0:
            self._world.block(self._parent, lambda: self._process.dead, timeout)
        return self._ended() if self._process.dead else None

    def stop(self, grace: float) -> CopyResult:
        self._stop.set()
        self._world.block(self._parent, lambda: self._process.dead, grace)
        if not self._process.dead:
            self._world.end(self._process)
        return self._ended()

    def _ended(self) -> CopyResult:
        died = PgetlError(ErrorKind.COPY_DIED, "the process of the copy ended without a word")
        return self._result or CopyResult(0, failure=ErrorData.of(died))

    def _run(self, process: Process) -> None:
        world = self._world
        client = store_module.client(world, process)
        destination = world.open_destination(process)

        @contextmanager
        def opened(_endpoints: object) -> Iterator[Any]:
            yield destination

        result = attempt.copy_group(
            self._job,
            client,
            Ranges(world, process),
            lambda report: _observe(world, report),
            self._stop,
            access=attempt.CopyServers(SourceClient(world, process), opened),
            runtime=SimRuntime(world, process),
        )
        if result.failure is not None and result.failure.kind is ErrorKind.INTERNAL:
            world.violate(f"{process} met a defect: {result.failure}")
        self._result = result


def command(world: World, do: Callable[[SimPipeline], object]) -> None:
    """A person's command, in a process of its own, unless the one before is at it still."""
    if "command" in world.processes:
        return

    def main(process: Process) -> None:
        world.note(f"-> {do(SimPipeline(world, process))}")

    world.start("command", main)
