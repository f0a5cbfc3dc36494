"""A small pipeline that things are done to, and the command line by which a person meets what comes of it.

Every command is a real process; what it says is kept apart as standard output and standard error. `Said.complaint` is
what somebody on call sees: it insists on one line, without a traceback and without a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from airflow_provider_pgetl.testing.servers.postgres_servers import PASSWORD, Database, Databases
from tests.commands import Command, Forked
from tests.comparing import assert_equal
from tests.replicated import Replicated
from tests.shop import ShopTable

SECRETS = (PASSWORD, PASSWORD.replace(" ", "%20"), "hunter2")

ORDERS = ShopTable("public.orders", "create table public.orders (id int primary key, note text, amount int)")
ITEMS = ShopTable("public.items", "create table public.items (id int primary key, what text)")
BOTH = (ITEMS, ORDERS)

_FILE = """\
id = "{id}"
tables = {tables}
{more}
[source]
uri = "env:PGETL_SOURCE_URI"
{source}
[state]
uri = "env:PGETL_STATE_URI"
[destination]
{place}
{destination}
[copy]
range_bytes = "16KiB"
{copy}
"""


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int | None
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line that it complained with."""
        lines = self.err.splitlines()
        assert len(lines) == 1, f"not one line of complaint\n{self}"
        assert lines[0].startswith("pgetl: "), self.err
        self.assert_presentable()
        return lines[0].removeprefix("pgetl: ")

    @property
    def error_messages(self) -> list[str]:
        self.assert_presentable()
        return [line.removeprefix("pgetl: ") for line in self.err.splitlines()]

    def assert_presentable(self) -> None:
        everything = self.out + self.err
        assert "Traceback" not in everything, everything
        assert not any(secret in everything for secret in SECRETS), everything

    def assert_well(self) -> None:
        assert (self.code, self.err) == (0, ""), self

    def __str__(self) -> str:
        return f"exit code {self.code}\n---- out\n{self.out}\n---- err\n{self.err}"


class Running(Command):
    """A command that has not ended yet."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], folder: Path) -> None:
        number = len(list(folder.glob("*.out")))
        out, err = folder / f"{number}.out", folder / f"{number}.err"
        for file in (out, err):
            file.touch()
        super().__init__(Forked(arguments, {**os.environ, **environment}, out, err), out, err)

    @property
    def said(self) -> Said:
        out, err = (file.read_text(errors="replace") for file in (self.out, self.err))
        return Said(self.process.returncode, out, err)

    def wait(self, timeout: float = 180.0) -> Said:
        if self.process.wait(timeout) is None:
            self.kill()
            raise AssertionError(f"it did not end within {timeout} s\n{self.said}")
        return self.said

    def stop(self, timeout: float = 180.0) -> Said:
        self.terminate()
        return self.wait(timeout)


@dataclass
class PipelineUnderTest(Replicated):
    """Two tables between two databases, the state in a third."""

    databases: Databases
    state: Database
    folder: Path
    id: str = "shop"
    tables: tuple[ShopTable, ...] = BOTH
    declared: tuple[str, ...] = ("public.orders", "public.items")
    more: str = ""
    source_options: str = ""
    copy_options: str = ""
    place: str = 'type = "postgres"\nuri = "env:PGETL_DESTINATION_URI"'
    destination_options: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    started: list[Running] = field(default_factory=list)

    def fill(self) -> None:
        for table in self.tables:
            self.source.execute(table.create)
        self.source.execute("insert into orders select n, 'note ' || n, n from generate_series(1, 500) n")
        self.source.execute("insert into items select n, 'item ' || n from generate_series(1, 50) n")

    # -- commands -----------------------------------------------------------------------------------------------------

    @property
    def file(self) -> Path:
        return self.folder / "shop.toml"

    def write_file(self) -> None:
        tables = "[" + ", ".join(f"'{name}'" for name in self.declared) + "]"
        options = {"more": self.more, "source": self.source_options, "copy": self.copy_options}
        options |= {"id": self.id, "place": self.place, "destination": self.destination_options}
        self.file.write_text(_FILE.format(tables=tables, **options))

    def start(self, verb: str, *arguments: str) -> Running:
        self.write_file()
        arguments = (verb, str(self.file), *arguments)
        self.started.append(Running(list(arguments), self.environment_of_commands, self.folder))
        return self.started[-1]

    def pgetl(self, verb: str, *arguments: str, timeout: float = 180.0) -> Said:
        return self.start(verb, *arguments).wait(timeout)

    def ddl(self, action: str, *arguments: str) -> Said:
        """The command for the event trigger, whose file comes second."""
        self.write_file()
        words = ["ddl", action, str(self.file), *arguments]
        self.started.append(Running(words, self.environment_of_commands, self.folder))
        return self.started[-1].wait()

    def catch_up(self) -> Said:
        return self.pgetl("run", "--until", "caught-up")

    @property
    def environment_of_commands(self) -> dict[str, str]:
        return {
            "PGETL_SOURCE_URI": self.source.uri,
            "PGETL_DESTINATION_URI": self.destination.uri,
            "PGETL_STATE_URI": self.state.uri,
            **self.environment,
        }

    def follow(self) -> Running:
        """A run, from the moment at which it streams and all tables are Ready."""
        running = self.start("run")
        running.until(lambda: self.streams and self.all_ready, "all tables were Ready")
        return running

    def close(self) -> None:
        for running in self.started:
            running.kill()

    # -- what is there ------------------------------------------------------------------------------------------------

    def copies(self, table: str) -> int:
        """How often a copy of it has begun."""
        statement = """select count(*) from pgetl.history
                       where table_schema || '.' || table_name = %s and phase ->> 'phase' = 'DataSync'"""
        ((count,),) = self.state.execute(statement, [table])
        return int(count)

    def arrives(self, statement: str) -> Callable[[], bool]:
        """Whether the destination answers a query with any row by now."""
        return lambda: bool(self.at_destination(statement))

    def publications(self) -> list[str]:
        return [name for (name,) in self.source.execute("select pubname::text from pg_publication order by 1")]

    @property
    def apply_slot(self) -> str:
        (name,) = [name for name in self.slots() if name.endswith("_apply")]
        return name

    def rows(self, table: str, at: Database | None = None) -> int:
        ((count,),) = (at or self.destination).execute(f"select count(*) from {table}")
        return int(count)

    def at_destination(self, statement: str) -> list[tuple[object, ...]]:
        try:
            return self.destination.execute(statement)
        except psycopg.errors.UndefinedTable:
            return []

    def change_something(self) -> None:
        """What must not be lost: an insert, an update, a delete in both tables, whole transactions."""
        with self.source.connect(autocommit=False) as session:
            session.execute("insert into orders select max(id) + 1, 'later', 1 from orders")
            session.execute("update orders set note = note || '!' where id % 7 = 0")
            session.execute("delete from orders where id = (select min(id) from orders)")
            session.execute("insert into items select max(id) + 1, 'later' from items")
            session.execute("update items set what = what || '!' where id % 5 = 0")
            session.commit()

    def assert_equal(self, tables: Iterable[ShopTable] | None = None) -> None:
        assert_equal(self.databases, tables or self.tables)

    def assert_nothing_lost(self) -> None:
        """Another change, another run: both sides are equal, all is Ready, and only the apply slot is left."""
        self.change_something()
        said = self.catch_up()
        assert said.code == 0, said
        self.assert_equal()
        assert set(self.phases().values()) == {"Ready"}, self.phases()
        assert [name[-6:] for name in self.slots()] == ["_apply"]


def with_password(uri: str, password: str) -> str:
    return re.sub(r":[^:@/]*@", f":{password}@", uri, count=1)
