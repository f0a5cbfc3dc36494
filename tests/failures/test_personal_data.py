"""Values before their transformation are nowhere: a run is killed at many places, its rules fail on values, its changes
go to disk, and everything that it has left is searched."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.failures.pipeline import PipelineUnderTest, Running

pytestmark = pytest.mark.servers

CANARY = "canary"
RULES = """
[transformation]
key = "env:PSEUDONYM_KEY"
[[transform]]
table = "public.people"
column = "id"
use = "hash"
[[transform]]
table = "public.people"
column = "email"
use = "email"
[[transform]]
table = "public.people"
column = "name"
use = "tests.failures.test_personal_data:Careful"
[[transform]]
table = "public.people"
column = "doc"
use = "json"
paths = {{ "contact.name" = "full_name" }}
[[transform]]
table = "public.people"
column = "bio*"
use = "mask"
kind = "password"
{more}
"""
PLACES = {
    "postgres": 'type = "postgres"\nuri = "env:PGETL_DESTINATION_URI"',
    "upsert": 'type = "delta"\nuri = "{lake}"',
    "landing": 'type = "delta"\nuri = "{lake}"\nmerge = "spark"',
}
PEOPLE = """
    create table people (id text primary key, email text, name text, doc jsonb, bio text, note text);
    alter table people alter bio set storage external
"""
ROWS = """
    insert into people
    select 'canary ' || n, 'canary' || n || '@example.org', 'canary ' || n,
        jsonb_build_object('contact', jsonb_build_object('name', 'canary ' || n)), repeat('canary ' || n, 500), 'kept'
    from generate_series({}, {}) n
"""


class Careful:
    """Reverses names, but not all of them."""

    def transform_value(self, text: str, key: bytes) -> str:
        del key
        if text.endswith("7777"):
            raise ValueError(f"{text} cannot be reversed")
        return text.encode().hex()


@pytest.fixture(params=["upsert", *(pytest.param(one, marks=pytest.mark.slow) for one in PLACES if one != "upsert")])
def private(request: pytest.FixtureRequest, shop: PipelineUnderTest) -> PipelineUnderTest:
    shop.place = PLACES[request.param].format(lake=shop.folder / "lake")
    shop.declared, shop.tables = ("public.people", "public.items"), ()
    shop.more = RULES.format(more="")
    temporary = shop.folder / "tmp"
    temporary.mkdir()
    shop.environment |= {"PSEUDONYM_KEY": "a key of the tests, long enough", "TMPDIR": str(temporary)}
    shop.source.execute(PEOPLE)
    shop.source.execute(ROWS.format(1, 300))
    return shop


def left(shop: PipelineUnderTest) -> Iterator[tuple[str, str]]:
    """Everything that is left: what commands said, all files, all rows of the destination and of the state."""
    for path in shop.folder.rglob("*"):
        if path.is_file():
            yield str(path), content(path)
    for database in (shop.destination, shop.state):
        for table in tables(database):
            yield table, str(database.execute(f"select t::text from {table} t"))


def content(path: Path) -> str:
    if path.suffix != ".parquet":
        return path.read_bytes().decode(errors="replace")
    file = pq.ParquetFile(path)
    return f"{file.metadata} {pa.Table.to_pylist(file.read())}"


def tables(database: Database) -> list[str]:
    query = """
        select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = relnamespace
        where relkind = 'r' and nspname <> 'information_schema' and nspname not like 'pg\\_%'"""
    staging = query.replace("nspname not like 'pg\\_%'", "nspname = 'pgetl_staging'")
    return [name for (name,) in [*database.execute(query), *database.execute(staging)]]


def assert_private(shop: PipelineUnderTest) -> None:
    found = dict(left(shop))
    assert sum(map(len, found.values())) > 1000
    assert not [where for where, text in found.items() if CANARY in text]


def die_at(shop: PipelineUnderTest, failpoint: str) -> None:
    shop.environment["PGETL_FAILPOINT"] = failpoint
    said = shop.pgetl("run", "--until", "caught-up", "-v")
    assert said.code == -signal.SIGKILL, f"{failpoint} was never passed: {said}"
    del shop.environment["PGETL_FAILPOINT"]
    assert_private(shop)


def change(shop: PipelineUnderTest) -> None:
    """Names, keys, and rows whose large value is not sent again."""
    shop.source.execute("update people set note = note || '!', name = name || '!' where id > 'canary 2'")
    shop.source.execute("update people set id = id || '_' where id < 'canary 15'")


def test_nothing_is_left_of_values_wherever_a_run_is_killed(private: PipelineUnderTest) -> None:
    for failpoint in ("copy.range_stored", "copy.publishing"):
        die_at(private, failpoint)
    private.catch_up().assert_well()
    for failpoint in ("apply.write", "apply.write_done"):
        change(private)
        die_at(private, failpoint)
    default = "" if "merge" in private.place else " default 'canary'"  # what lands cannot be given to existing rows
    private.source.execute(f"alter table people add bio_too text{default}")
    change(private)
    die_at(private, "schema.stored")
    private.catch_up().assert_well()
    assert private.pgetl("status", "--json").code == 0
    assert private.pgetl("verify").code == 0
    assert_private(private)


def test_nothing_is_left_of_values_on_which_a_rule_fails(private: PipelineUnderTest) -> None:
    private.catch_up().assert_well()
    private.source.execute(ROWS.format(7777, 7777))
    said = private.catch_up()
    assert (said.code, "Column name of public.people could not be transformed" in said.err) == (4, True), said
    assert private.pgetl("rollback", "public.people").code == 0
    said = private.catch_up()
    assert (said.code, "ValueError at test_personal_data.py" in said.err) == (4, True), said
    assert private.pgetl("check").code == 0
    assert private.pgetl("status", "-v").code == 0
    assert_private(private)


def test_changes_beyond_the_memory_budget_are_not_on_disk_as_they_are(private: PipelineUnderTest) -> None:
    """A stream of small memory is read by a worker that cannot write; the files that it has opened are searched."""
    private.more = RULES.format(more='[stream]\nmemory = "1MiB"')
    private.catch_up().assert_well()
    private.source.execute(ROWS.format(1000, 5000))
    running = private.start("run")
    found: list[bytes] = []

    def has_spilled() -> bool:
        found.extend(spilled(running.process.pid))
        return bool(found)

    running.until(has_spilled, "changes had been spilled")
    running.stop()
    assert max(map(len, found)) > 1 << 18
    assert not any(CANARY.encode() in data for data in found)
    assert_private(private)


def spilled(pid: int) -> list[bytes]:
    """What is in the files without a name that the process has opened."""
    try:
        links = [link for link in Path(f"/proc/{pid}/fd").iterdir() if str(link.readlink()).endswith("(deleted)")]
        return [data for link in links if (data := link.read_bytes())]
    except OSError:
        return []


def test_a_preview_is_printed_and_nothing_is_written(private: PipelineUnderTest) -> None:
    private.write_file()
    command = ["transform", "preview", str(private.file), "--rows", "1"]
    said = Running(command, private.environment_of_commands, private.folder).wait()
    assert (said.code, said.err) == (0, ""), said
    assert "public.people: id by hash, email by email, name by tests.failures.test_personal_data:Careful" in said.out
    assert '"canary1@example.org" → "' in said.out
    assert not private.slots()
    assert not private.publications()
