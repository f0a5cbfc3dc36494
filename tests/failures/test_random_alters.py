"""Drawn ALTERs between drawn changes of rows, under a run that is killed again and again: the tables end up equal, and
are copied again only where others had followed an ALTER before it was read, so that it is open what it has done."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.failures.pipeline import PipelineUnderTest, Running
from tests.failures.test_added_columns import reasons, verified
from tests.shop import ShopTable

pytestmark = pytest.mark.servers

VALUES = {
    "int": ("0", "-7", "2147483647"),
    "text": ("''", "'it''s \\ \"x\"'", "repeat('long', 1000)"),
    "numeric(8, 2)": ("0.5", "-999999.99"),
    "timestamptz": ("'2026-01-02 03:04:05.678+02'", "'1970-01-01Z'"),
    "boolean": ("true", "false"),
    "bigint": ("9223372036854775807", "1"),
}
KINDS = ("id int primary key", "id int", "id int primary key) partition by hash (id")
STEPS = 48


@dataclass
class DrawnTable:
    """`old`: columns that the stream knows by their names, which may be dropped. (What is dropped before the stream has
    read of it leaves nothing in the catalog that tells which column it was.) A name is never given twice. `described`:
    the event trigger describes each ALTER, so that any column may be dropped, and types may be widened."""

    name: str
    kind: str
    described: bool = False
    columns: dict[str, str] = field(default_factory=dict)
    old: set[str] = field(default_factory=set)
    names: int = 0

    def new_name(self) -> str:
        self.names += 1
        return f"c{self.names}"

    def create(self) -> str:
        statements = [f"create table {self.name} ({self.kind})"]
        if "partition" in self.kind:
            statements += [
                f"create table {self.name}_{n} partition of {self.name} for values with (modulus 2, remainder {n})"
                for n in range(2)
            ]
        if "primary" not in self.kind:
            statements.append(f"alter table {self.name} replica identity full")
        return "; ".join(statements)

    def alter(self, dice: random.Random) -> str:
        kind = dice.choices(("add", "rename", "drop"), (5, 3, 2))[0]
        if kind == "rename" and self.columns:
            before, after = dice.choice(list(self.columns)), self.new_name()
            self.columns[after] = self.columns.pop(before)
            self.old.discard(before)
            return f"alter table {self.name} rename {before} to {after}"
        if kind == "add" and self.described and dice.random() < 0.3 and "int" in self.columns.values():
            wider = next(name for name, sql_type in self.columns.items() if sql_type == "int")
            self.columns[wider] = "bigint"
            return f"alter table {self.name} alter {wider} type bigint"
        if kind == "drop" and (known := self.columns if self.described else self.old):
            gone = dice.choice(sorted(known))
            self.old.discard(gone)
            del self.columns[gone]
            return f"alter table {self.name} drop {gone}"
        name, sql_type = self.new_name(), dice.choice(list(VALUES))
        self.columns[name] = sql_type
        default = dice.choice(("", f" not null default {dice.choice(VALUES[sql_type])}"))
        return f"alter table {self.name} add {name} {sql_type}{default}"

    def change(self, dice: random.Random) -> str:
        number = dice.randrange(1, 200)
        names = [name for name in self.columns if dice.random() < 0.6]
        values = [dice.choice(VALUES[self.columns[name]]) for name in names]
        match dice.choice(("insert", "insert", "update", "update", "move", "delete")):
            case "insert":
                columns, row = ", ".join(["id", *names]), ", ".join(["n", *values])
                fresh = f"n not in (select id from {self.name})"
                rows = f"select {row} from generate_series({number}, {number + 5}) n where {fresh}"
                return f"insert into {self.name} ({columns}) {rows}"
            case "update" if names:
                sets = ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
                return f"update {self.name} set {sets} where id % 7 = {number % 7}"
            case "move":
                return f"update {self.name} set id = id + 1000 where id = {number} and id < 1000"
            case _:
                return f"delete from {self.name} where id % 23 = {number % 23}"


def transaction(source: Database, dice: random.Random, tables: list[DrawnTable]) -> None:
    """Some changes and ALTERs, of which some are taken back."""
    with source.connect(autocommit=False) as session:
        for _ in range(dice.randrange(1, 7)):
            table = dice.choice(tables)
            before = dict(table.columns), set(table.old)
            taken_back = dice.random() < 0.15
            if taken_back:
                session.execute("savepoint s")
            for _ in range(dice.randrange(1, 3)):
                statement = table.alter(dice) if dice.random() < 0.3 else table.change(dice)
                session.execute(statement.encode())
            if taken_back:
                session.execute("rollback to s")
                table.columns, table.old = before
        session.commit()


@pytest.fixture
def pipeline(databases: Databases, state_database: Database, tmp_path: Path) -> Iterator[PipelineUnderTest]:
    names = [f"public.drawn_{n}" for n in range(len(KINDS))]
    tables = tuple(ShopTable(name, "") for name in names)
    found = PipelineUnderTest(databases, state_database, tmp_path, "shop", tables, tuple(names))
    found.environment["TEST_WATCH_SECONDS"] = "1"
    found.more = '[stream]\nmin_interval = "100ms"'
    yield found
    found.close()


def copied_anew(pipeline: PipelineUnderTest, run: Running) -> set[str]:
    """Waits until the tables are equal. Returns those of which it was open what an ALTER has done, because others had
    followed it before it was read."""
    found: set[str] = set()

    def are_equal() -> bool:
        for table, why in reasons(pipeline).items():
            assert "altered since as well" in why, why
            found.add(table)
            pipeline.pgetl("reset", table).assert_well()
        return set(pipeline.phases().values()) == {"Ready"} and verified(pipeline)

    run.until(are_equal, "the tables are equal")
    return found


def killed(pipeline: PipelineUnderTest, dice: random.Random, tables: list[DrawnTable], run: Running) -> Running:
    """Returns the next run, before which some more has happened."""
    run.kill()
    for _ in range(dice.randrange(3)):
        transaction(pipeline.source, dice, tables)
    return pipeline.start("run")


CASES = [(place, seed, trigger) for seed in range(3, 9) for place in ("postgres", "delta") for trigger in (False, True)]
MORE = [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in [("postgres", 1, False), ("delta", 2, False), ("delta", 2, True), *CASES]
]


@pytest.mark.parametrize(("place", "seed", "trigger"), [("postgres", 1, True), *MORE])
def test_tables_that_are_altered_at_random_are_equal(
    pipeline: PipelineUnderTest, place: str, seed: int, trigger: bool
) -> None:
    dice = random.Random(seed)
    if trigger:
        pipeline.ddl("install").assert_well()
    if place == "delta":
        pipeline.place = f'type = "delta"\nuri = "{pipeline.folder}/lake"'
    tables = [DrawnTable(f"drawn_{n}", kind, trigger) for n, kind in enumerate(KINDS)]
    for table in tables:
        pipeline.source.execute(table.create())
        for _ in range(4):
            pipeline.source.execute(table.change(dice))
    run, anew = pipeline.follow(), set[str]()
    for step in range(STEPS):
        transaction(pipeline.source, dice, tables)
        if dice.random() < 0.2:
            run = killed(pipeline, dice, tables, run)
        if step % 12 == 11:
            for table in tables:  # an ALTER shows with the next row
                pipeline.source.execute(f"insert into {table.name} (id) values ({10_000 + step})")
            anew |= copied_anew(pipeline, run)
            for table in tables:
                table.old = set(table.columns)
    run.stop()
    pipeline.catch_up().assert_well()
    assert verified(pipeline), pipeline.pgetl("verify")
    assert {one.name for one in pipeline.tables if pipeline.copies(one.name) > 1} == anew
    assert not (trigger and anew), "nothing is open"
