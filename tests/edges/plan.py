"""The plan of a seed: settings, tables, and steps. A pure function of the seed: a longer plan begins with the shorter
one, and what the servers do has no influence on it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, get_args

from airflow_provider_pgetl.engine.destinations.delta.options import Updates
from airflow_provider_pgetl.testing.servers.postgres_servers import StopMode
from tests.edges.alters import Alter, Scene, draw_alter
from tests.edges.changes import draw_transaction
from tests.edges.tables import ROWS, Table, draw_table

Which = Literal["source", "destination", "state"]
End = StopMode | Literal["kill"]
_ENDS: tuple[End, ...] = ("fast", "immediate", "kill")


@dataclass(frozen=True)
class Transaction:
    statements: tuple[str, ...]
    commits: bool


@dataclass(frozen=True)
class Hold:
    """A transaction in a session of its own, that stays open until `Release`."""

    statements: tuple[str, ...]


@dataclass(frozen=True)
class Release:
    commits: bool


@dataclass(frozen=True)
class Restart:
    which: Which
    how: End


@dataclass(frozen=True)
class KillWorker:
    """By SIGKILL. What follows is done without a worker, up to the next `StartWorker`."""


@dataclass(frozen=True)
class StopWorker:
    """By SIGTERM."""


@dataclass(frozen=True)
class StartWorker:
    pass


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Check:
    """What was committed arrives, and all is equal that no edge has touched. `settled`: by a run that ends when it has
    caught up, after which also what edges have touched is equal or Errored; and what is Errored is put right."""

    settled: bool


Step = Transaction | Hold | Release | Alter | Restart | KillWorker | StopWorker | StartWorker | Pause | Check


@dataclass
class Plan:
    seed: int
    source: int
    destination: int
    managed: bool
    lake: Updates | None  # None: to PostgreSQL
    on_slot_lost: Literal["error", "resync"]
    copy: str
    stream: str
    create: list[str]
    names: tuple[str, ...]
    declarations: list[str]
    steps: list[Step] = field(default_factory=list)

    def __str__(self) -> str:
        kind = f"lake ({self.lake})" if self.lake else f"PostgreSQL {self.destination}"
        lines = [f"seed {self.seed}: from PostgreSQL {self.source} to a {kind}, publication managed: {self.managed}"]
        lines.append(f"on_slot_lost = {self.on_slot_lost}")
        lines += [self.copy, self.stream, *self.declarations, *(f"{statement};" for statement in self.create)]
        return "\n".join([*lines, *(f"{number:4} {_told(step)}" for number, step in enumerate(self.steps))])


def _told(step: Step) -> str:
    match step:
        case Transaction(statements, commits):
            return "; ".join((*statements, "commit" if commits else "rollback"))
        case Hold(statements):
            return "; ".join(("in another session", *statements))
        case Alter(what, tables, statements):
            return f"-- {what} ({', '.join(tables)}): {'; '.join(statements)}"
        case _:
            return repr(step)


def draw_plan(seed: int, steps: int, *, lake: bool = False, tables: int | None = None) -> Plan:
    dice = random.Random(seed)
    source = dice.choice([16, 18])
    destination = dice.choice([source, 16, 18])
    managed = dice.random() < 0.65
    count = dice.choice([4, 6, 8])
    drawn = [draw_table(dice, number, source, managed) for number in range(tables or count)]
    create, declarations = _create(drawn, managed, source), _declare(drawn, managed)
    on_slot_lost: Literal["error", "resync"] = "error" if random.Random(~seed).random() < 0.3 else "resync"
    updates: Updates | None = ("rewrite", "merge_on_read")[seed % 2] if lake else None
    plan = Plan(seed, source, destination, managed, updates, on_slot_lost, "", "", create, _names(drawn), declarations)
    plan.copy = f"table_workers = {dice.choice([1, 2, 3])}\n" + dice.choice(_COPIES)
    plan.stream = dice.choice(_STREAMS)
    scene = Scene(drawn, source, managed, ("pgetl_edges", "pgetl_edges_inserts" if managed else "pgetl_edges"))
    plan.steps = list(islice(_steps(dice, scene), steps))
    return plan


_COPIES = ('range_bytes = "8KiB"\ngroup_bytes = "64KiB"', 'group_bytes = "8KiB"', "")
_STREAMS = ("", "", 'memory = "1MiB"', 'min_interval = "400ms"')


def _names(tables: list[Table]) -> tuple[str, ...]:
    return ("marker", *(table.name for table in tables))


def _create(tables: list[Table], managed: bool, major: int) -> list[str]:
    statements = ["create table edges.marker (id bigint primary key)"]
    for table in tables:
        statements += [*table.create(), table.fill(0, ROWS - 1)]
    if not managed:
        members = ", ".join(f"table {table.member}" for table in tables)
        generated = ", publish_generated_columns = stored" if major >= 18 else ""
        options = f"publish_via_partition_root = true{generated}"
        statements.append(f"create publication pgetl_edges for table edges.marker, {members} with ({options})")
    return statements


def _declare(tables: list[Table], managed: bool) -> list[str]:
    lines = []
    for table in tables:
        if managed and (table.where or table.listed or table.insert_only):
            lines += ["[[table]]", f'name = "{table.sql}"']
            lines += [f'where = "{table.where}"'] if table.where else []
            lines += [f"columns = [{', '.join(map(_quoted, table.listed))}]"] if table.listed else []
            lines += ["insert_only = true"] if table.insert_only else []
    return lines


def _quoted(text: str) -> str:
    return f'"{text}"'


# -- steps ------------------------------------------------------------------------------------------------------------


def _steps(dice: random.Random, scene: Scene) -> Iterator[Step]:
    """Without end. Alterations that belong to an earlier one come when their time has come."""
    waiting: list[tuple[int, Alter]] = []
    down = held = False
    yield Pause(round(dice.uniform(0, 3), 2))
    number = 0
    while True:
        number += 1
        due = [alter for at, alter in waiting if at <= number]
        waiting = [(at, alter) for at, alter in waiting if at > number]
        for alter in due:
            yield _known(scene, alter)
        step = _draw_step(dice, scene, down, held)
        if isinstance(step, list):
            waiting += [(number + delay, alter) for delay, alter in step if delay]
            yield from (_known(scene, alter) for delay, alter in step if not delay)
            continue
        yield step
        down = isinstance(step, KillWorker | StopWorker) or (down and not isinstance(step, StartWorker | Check))
        held = isinstance(step, Hold) or (held and not isinstance(step, Release))


def _known(scene: Scene, alter: Alter) -> Alter:
    if alter.mends:
        for table in scene.tables:
            table.frozen = table.frozen and table.name not in alter.tables
    return alter


def _draw_step(dice: random.Random, scene: Scene, down: bool, held: bool) -> Step | list[tuple[int, Alter]]:
    luck = dice.random()
    if down and luck < 0.25:
        return StartWorker()
    if held and luck < 0.3:
        return Release(dice.random() < 0.7)
    return _draw_any(dice, scene, down, held)


def _draw_any(dice: random.Random, scene: Scene, down: bool, held: bool) -> Step | list[tuple[int, Alter]]:
    luck = dice.random()
    if luck < 0.14:
        return draw_alter(dice, scene)
    if luck < 0.17:
        return Restart(dice.choice(get_args(Which)), dice.choice(_ENDS))
    if luck < 0.20 and not down:
        return KillWorker() if dice.random() < 0.7 else StopWorker()
    if luck < 0.24:
        return Check(settled=dice.random() < 0.3)
    if luck < 0.32:
        return Pause(round(dice.uniform(0, 0.4), 2))
    if luck < 0.34 and not held:
        return Hold(tuple(draw_transaction(dice, scene.tables)))
    return Transaction(tuple(draw_transaction(dice, scene.tables)), dice.random() < 0.9)
