"""Those who act on the pipeline from outside: the source's applications, an operator, bad luck, the network, time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import Errored, Reset, RolledBack
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from tests.simulation.history import UNIT
from tests.simulation.processes import command
from tests.simulation.source import Slot
from tests.simulation.world import APPLY_SLOT, Actor, World, slot_of

WORKERS = ("worker-a", "worker-b")


def applications(world: World) -> Actor:
    while True:
        if not world.source.stopping:
            world.note(world.source.transact(world.random, world.now))
        yield


def clock(world: World) -> Actor:
    """To the next moment at which anything happens; or some time passes in which nobody comes to act."""
    while True:
        if world.able():
            world.scheduler.now += world.random.choice([0.1, 0.3, 1.0])
        else:
            world.pass_time()
        yield


def network(world: World) -> Actor:
    """Requests whose senders have long given them up."""
    while True:
        world.arrive()
        yield


def operator(world: World) -> Actor:
    """Rolls back and resets whatever, whenever; between looking and acting the table may have moved."""
    while True:
        table = world.random.choice(world.tables)
        mend(world, table)
        if world.random.random() < 0.3:
            world.note(f"resets {table}")
            command(world, lambda pipeline, table=table: pipeline.reset(table))
        else:
            world.note(f"rolls {table} back")
            command(world, lambda pipeline, table=table: pipeline.rollback(table))
        yield


def mend(world: World, table: TableName) -> None:
    world.destination.poison -= {spoiled for spoiled in world.destination.poison if spoiled[0] == table}


def mender(world: World) -> Actor:
    """Whoever in the end rolls back every table that waits for a person, or resets it, as its error says."""
    while True:
        store = world.open_store()
        for table, record in store.tables().items():
            if isinstance(record.state.phase, Errored):
                mend(world, table)
                attempt = record.state.attempt
                if "Add it to the publication" in (record.state.phase.solution or ""):
                    world.source.publish(table)
                if "pgetl reset" in (record.state.phase.solution or ""):
                    world.note(f"resets {table}")
                    store.apply({table: Reset(record.state.generation)})
                    continue
                alive = attempt is not None and slot_of(attempt) in world.source.slots
                world.note(f"rolls {table} back")
                store.apply({table: RolledBack(record.state.generation, alive)})
        yield


def mishaps(world: World) -> Actor:
    """One thing that goes wrong per step."""
    while True:
        if world.scenario.mishaps:
            MISHAPS[world.random.choice(world.scenario.mishaps)](world)
        yield


def _crash(world: World) -> None:
    running = [name for name in WORKERS if name in world.processes]
    if running:
        crash(world, world.random.choice(running))


def crash(world: World, name: str) -> None:
    """kill -9; the server may take a while to notice that the connections are gone."""
    if name in world.processes:
        world.note(f"{name} is killed")
        world.end(world.processes[name], noticed=world.random.random() < 0.5)


def _crash_copy(world: World) -> None:
    running = [name for name in world.processes if name.startswith("copy-")]
    if running:
        crash(world, world.random.choice(running))


def _stop(world: World) -> None:
    """Somebody ends a run as it should be ended."""
    running = [name for name in WORKERS if name in world.processes]
    if running:
        process = world.processes[world.random.choice(running)]
        if process.stop is not None:
            world.note(f"{process} is to stop")
            process.stop.set()


def _pause(world: World, names: list[str], *seconds: float) -> None:
    if names:
        name = world.random.choice(names)
        world.paused[name] = world.now + world.random.choice(seconds)
        world.note(f"{name} stands still until {world.paused[name]:.2f}")


def _pause_process(world: World) -> None:
    _pause(world, [n for n in world.processes if n.startswith(("worker-", "copy-"))], 1.0, 20.0)


def _pause_thread(world: World) -> None:
    """A worker that goes on while, say, its lease is not renewed. Only fences can stand that one."""
    threads = [name for name in world.scheduler.tasks if name.startswith("worker-")]
    _pause(world, [name for name in threads if world.scenario.exactly_once or not name.endswith("/lease")], 1.0, 20.0)


def _pause_writer(world: World) -> None:
    """A write that takes its time, while all else goes on."""
    _pause(world, [name for name in world.scheduler.tasks if name.endswith("-writer")], 1.0, 5.0)


def _lease_lapses(world: World) -> None:
    """The store's clock is ahead: the lease is free, while its holder goes on and will not ask for a while."""
    lease = world.durable.lease
    if lease is not None:
        world.durable.lease = replace(lease, expires=world.now)
        world.paused[f"{lease.holder.partition('#')[0]}/lease"] = world.now + world.random.choice([1.0, 5.0])
        world.note(f"the lease of {lease.holder} lapses")


def _outage(world: World) -> None:
    server = world.random.choice(["store", "destination", "source"])
    world.outages[server] = world.now + world.random.choice([0.3, 2.0, 8.0])
    world.note(f"{server} is away until {world.outages[server]:.2f}")


def _back_up(world: World) -> None:
    world.destination.back_up()
    world.note("the destination is backed up")


def _restore(world: World) -> None:
    if world.destination.restore():
        world.restored = dict.fromkeys(world.tables, world.durable.last_attempt)
        world.restores += 1
        world.note("the destination is restored from its backup")


def _back_up_store(world: World) -> None:
    world.back_up_store()
    world.note("the state is backed up")


def _restore_store(world: World) -> None:
    if world.restore_store():
        world.note("the state is restored from its backup")


def _back_up_source(world: World) -> None:
    world.source.back_up()
    world.note("the source is backed up")


def _set_back_source(world: World) -> None:
    """What was copied until now follows a history that is no more."""
    promoted = world.random.random() < 0.5
    if world.source.set_back(promoted=promoted):
        world.astray = dict.fromkeys(world.tables, world.durable.last_attempt)
        world.snapshots.clear()
        world.note(f"the source goes back to {Boundary(world.source.lsn)}{', promoted' if promoted else ''}")


def _crash_source(world: World) -> None:
    """Its slots have lost some of what they were confirmed to; nothing that was committed is lost."""
    world.source.crash()
    world.snapshots.clear()
    world.note("the source crashes, and starts again")


def _shut_source_down(world: World) -> None:
    if not world.source.stopping and not world.is_away("source"):
        world.source.stopping, world.stopping_since = True, world.now
        world.note("the source is to shut down")


def _exchange_membership(world: World) -> None:
    """A table is taken out of the publication, for good or for a moment: changes of it are missing from then on."""
    table = world.random.choice(world.tables)
    world.source.withdraw(table)
    world.astray = {**world.astray, table: world.durable.last_attempt}
    if world.random.random() < 0.5:
        world.source.publish(table)
    world.note(
        f"{table} is taken out of the publication{', and put back' if table in world.source.memberships else ''}"
    )


def _alter_identity(world: World) -> None:
    table = world.random.choice(world.tables)
    world.source.alter_identity(table)
    world.note(f"the replica identity of {table} is {world.source.schemas[table].key} now")


def _exchange_column(world: World) -> None:
    """What was copied until now shows what was in the other column."""
    table = world.random.choice(world.tables)
    world.source.exchange_column(table, world.now)
    world.astray = {**world.astray, table: world.durable.last_attempt}
    world.note(f"a column of {table} is dropped and added again")


def _poison(world: World) -> None:
    table = world.random.choice(world.tables)
    world.destination.poison.add((table, world.states[table].generation))
    world.note(f"{table} cannot be written any more")


def _cut(world: World) -> None:
    name = world.random.choice(sorted(world.source.slots) or [""])
    world.source.terminate(name)
    world.note(f"the stream of {name} breaks")


def _lose(world: World, slot: Slot) -> None:
    slot.lost = True
    if slot.active is not None:
        slot.active.close()
    world.note(f"the slot {slot.name} is lost")


def _lose_group_slot(world: World) -> None:
    groups = [slot for name, slot in sorted(world.source.slots.items()) if name != APPLY_SLOT]
    if groups:
        _lose(world, world.random.choice(groups))


def _lose_apply_slot(world: World) -> None:
    if APPLY_SLOT in world.source.slots:
        _lose(world, world.source.slots[APPLY_SLOT])


def _replace_apply_slot(world: World) -> None:
    """Somebody drops our slot and makes one of the same name."""
    if APPLY_SLOT in world.source.slots:
        world.source.drop_slot(APPLY_SLOT)
        world.source.lsn += UNIT
        try:
            world.source.create_slot(APPLY_SLOT, world.random)
        except PgetlError:
            return
        world.note("the apply slot is dropped and made again by somebody")


def _pause_pipeline(world: World) -> None:
    """Or it is resumed, if it is paused."""
    paused = world.durable.view.pipeline.paused is None
    world.open_store().set_paused(paused)
    world.note(f"the pipeline is {'paused' if paused else 'resumed'}")


MISHAPS: dict[str, Callable[[World], None]] = {
    "crash": _crash,
    "crash of a copy": _crash_copy,
    "stop": _stop,
    "pause of a process": _pause_process,
    "pause of a thread": _pause_thread,
    "pause of a writer": _pause_writer,
    "lease lapses": _lease_lapses,
    "outage": _outage,
    "poison": _poison,
    "backup": _back_up,
    "restore": _restore,
    "state backup": _back_up_store,
    "state restored": _restore_store,
    "cut": _cut,
    "source crash": _crash_source,
    "source shutdown": _shut_source_down,
    "publication changed": _exchange_membership,
    "identity altered": _alter_identity,
    "column exchanged": _exchange_column,
    "source backup": _back_up_source,
    "source set back": _set_back_source,
    "group slot lost": _lose_group_slot,
    "apply slot lost": _lose_apply_slot,
    "apply slot replaced": _replace_apply_slot,
    "pipeline paused": _pause_pipeline,
}

# In worlds that ask for it: none of the others is to be held up by it.
ASKED_FOR = frozenset({"pipeline paused"})

# What only fences in the destination can stand.
FENCED = frozenset(
    {
        "lease lapses",
        "backup",
        "restore",
        "state backup",
        "state restored",
        "source backup",
        "source set back",
        "publication changed",
        "identity altered",
        "column exchanged",
    }
)
