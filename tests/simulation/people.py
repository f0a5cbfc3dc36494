"""Those who act on the pipeline from outside: the source's applications, an operator, bad luck, the network, time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.phases import Errored, Init, Ready, Reset, RolledBack, SyncDone, is_followed
from airflow_provider_pgetl.engine.tables import TableName
from tests.simulation.source import Slot
from tests.simulation.world import APPLY_SLOT, Actor, World, slot_of

WORKERS = ("worker-a", "worker-b")


def applications(world: World) -> Actor:
    while True:
        yield
        world.note(world.source.transact(world.random))


def clock(world: World) -> Actor:
    while True:
        yield
        world.now += world.random.choice([0.1, 0.3, 1.0])


def network(world: World) -> Actor:
    """Requests whose senders have long given them up."""
    while True:
        yield
        world.arrive()


def operator(world: World) -> Actor:
    """Rolls back and resets whatever, whenever; between looking and acting the table may have moved."""
    store = world.open_store()
    while True:
        yield
        store.load()
        table = world.random.choice(world.tables)
        state = store.tables()[table].state
        alive = state.attempt is not None and slot_of(state.attempt) in world.source.slots
        event = Reset(state.generation) if world.random.random() < 0.3 else RolledBack(state.generation, alive)
        yield
        mend(world, table)
        answer = store.apply({table: event})
        world.note(f"{table} {event} -> {answer}")


def mend(world: World, table: TableName) -> None:
    world.destination.poison -= {spoiled for spoiled in world.destination.poison if spoiled[0] == table}


def mender(world: World) -> Actor:
    """Whoever in the end rolls back every table that waits for a person."""
    store = world.open_store()
    while True:
        yield
        store.load()
        for table, record in store.tables().items():
            if isinstance(record.state.phase, Errored):
                mend(world, table)
                attempt = record.state.attempt
                alive = attempt is not None and slot_of(attempt) in world.source.slots
                world.note(f"rolls {table} back")
                store.apply({table: RolledBack(record.state.generation, alive)})
        for _ in range(20):
            yield


def mishaps(world: World) -> Actor:
    """One thing that goes wrong per step."""
    while True:
        yield
        MISHAPS[world.random.choice(world.scenario.mishaps)](world)


def _crash(world: World) -> None:
    crash(world, world.random.choice([name for name in WORKERS if name in world.actors]))


def crash(world: World, name: str) -> None:
    """kill -9; the server may take a while to notice that the connections are gone."""
    from tests.simulation.worker import worker_process

    world.note(f"{name} is killed")
    world.kill(name)
    if world.random.random() < 0.5:
        world.source.hang_up(name)
    world.spawn(name, worker_process(world, name))


def _crash_copy(world: World) -> None:
    running = [name for name in world.actors if name.startswith("copy-")]
    if running:
        name = world.random.choice(running)
        world.note(f"{name} is killed")
        world.kill(name)


def _pause_process(world: World) -> None:
    name = world.random.choice([name for name in world.actors if name.startswith(("worker-", "copy-"))])
    name = name.partition("/")[0]
    world.paused[name] = world.now + world.random.choice([1.0, 9.0])
    world.note(f"{name} stands still until {world.paused[name]:.2f}")


def _pause_thread(world: World) -> None:
    """A worker that goes on while, say, its lease is not renewed."""
    threads = [name for name in world.actors if name.startswith("worker-")]
    name = world.random.choice(threads)
    world.paused[name] = world.now + world.random.choice([1.0, 9.0])
    world.note(f"{name} stands still until {world.paused[name]:.2f}")


def _pause_writer(world: World) -> None:
    """A write that takes its time, while all else goes on."""
    writers = [name for name in world.actors if name.endswith(".writer")]
    if writers:
        name = world.random.choice(writers)
        world.paused[name] = world.now + world.random.choice([1.0, 5.0])
        world.note(f"{name} stands still until {world.paused[name]:.2f}")


def _lease_lapses(world: World) -> None:
    """The store's clock is ahead: the lease is free, while its holder goes on and will not ask for a while."""
    lease = world.durable.lease
    if lease is not None:
        world.durable.lease = replace(lease, expires=world.now)
        world.paused[f"{lease.holder}/lease"] = world.now + world.random.choice([1.0, 5.0])
        world.note(f"the lease of {lease.holder} lapses")


def _outage(world: World) -> None:
    server = world.random.choice(["store", "destination", "source"])
    world.outages[server] = world.now + world.random.choice([0.3, 2.0, 8.0])
    world.note(f"{server} is away until {world.outages[server]:.2f}")


def _back_up(world: World) -> None:
    world.destination.back_up()
    world.note("the destination is backed up")


def _restore(world: World) -> None:
    """Only while no table is copied or catches up: what a restored destination lacks of those is not found yet."""
    settled = all(isinstance(s.phase, Init | Ready | SyncDone) or is_followed(s) for s in world.states.values())
    if settled and world.destination.restore():
        world.restored |= set(world.tables)
        world.restores += 1
        world.note("the destination is restored from its backup")


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
        world.source.lsn += 1
        try:
            world.source.create_slot(APPLY_SLOT, world.random)
        except PgetlError:
            return
        world.note("the apply slot is dropped and made again by somebody")


MISHAPS: dict[str, Callable[[World], None]] = {
    "crash": _crash,
    "crash of a copy": _crash_copy,
    "pause of a process": _pause_process,
    "pause of a thread": _pause_thread,
    "pause of a writer": _pause_writer,
    "lease lapses": _lease_lapses,
    "outage": _outage,
    "poison": _poison,
    "backup": _back_up,
    "restore": _restore,
    "cut": _cut,
    "group slot lost": _lose_group_slot,
    "apply slot lost": _lose_apply_slot,
    "apply slot replaced": _replace_apply_slot,
}

# What only fences in the destination can stand.
FENCED = frozenset({"lease lapses", "backup", "restore"})
