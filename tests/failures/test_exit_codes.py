"""The table of exit codes in docs/reference/commands.md: each trouble, met by `check` and by `run`."""

import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.failures.pipeline import PipelineUnderTest, with_password

pytestmark = pytest.mark.servers

DOCS = (Path(__file__).parents[2] / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
PARTS = ("SOURCE", "STATE", "DESTINATION")

Trouble = Callable[[PipelineUnderTest], Iterator[None]]


def documented() -> dict[str, int]:
    _, _, table = DOCS.partition("| trouble, for `check` and `run` alike | code |\n")
    rows = re.findall(r"^\| (.+) \| (\d) \|$", table.partition("\n\n")[0], re.MULTILINE)
    return {trouble: int(code) for trouble, code in rows}


def database(shop: PipelineUnderTest, part: str) -> Database:
    return {"SOURCE": shop.source, "STATE": shop.state, "DESTINATION": shop.destination}[part]


def set_uri(shop: PipelineUnderTest, part: str, uri: str) -> None:
    shop.environment = {f"PGETL_{part}_URI": uri}


def set_lake(shop: PipelineUnderTest, endpoint: str, more: str = "") -> None:
    """The last part of the file, with the storage options behind all else of its section."""
    storage = f'max_retries = "0", AWS_REGION = "x", AWS_ALLOW_HTTP = "true", AWS_ENDPOINT_URL = "{endpoint}"'
    shop.place = f'type = "delta"\nuri = "s3://lake/shop"\nstorage = {{ {storage} }}\n{more}'
    shop.environment = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "hunter2"}


# -- troubles: each yields once for every form that it may take -------------------------------------------------------


def a_mistake_in_the_file(shop: PipelineUnderTest) -> Iterator[None]:
    for shop.copy_options in ("table_worker = 2", "table_workers = 0"):
        yield
    shop.copy_options = ""
    for endpoint in ("", "localhost:9000"):
        set_lake(shop, endpoint)
        yield
    set_lake(shop, "http://localhost:9000", 'vacuum_retention = "999999999999h"')
    yield


def a_reference_that_leads_nowhere(shop: PipelineUnderTest) -> Iterator[None]:
    for part in PARTS:
        set_uri(shop, part, "")
        yield


def a_table_that_is_not_there(shop: PipelineUnderTest) -> Iterator[None]:
    for name in ("public.order", "nothing.*"):
        shop.declared = (name, "public.items")
        yield


def a_pipeline_of_a_dag(shop: PipelineUnderTest) -> Iterator[None]:
    shop.pgetl("status").assert_well()
    shop.state.execute("update pgetl.pipelines set owner = 'sales'")
    yield


def a_table_that_must_not_be_published(shop: PipelineUnderTest) -> Iterator[None]:
    shop.declared = ("public.orders",)
    shop.more = '[[table]]\nname = "public.items"\nwhere = "idd > 1"'
    yield
    shop.source.execute("alter table orders drop constraint orders_pkey")
    yield


def a_missing_privilege(shop: PipelineUnderTest) -> Iterator[None]:
    """A role that may do nothing at all, but to connect."""
    for part in PARTS:
        there, role = database(shop, part), f"nobody_{secrets.token_hex(4)}"
        there.execute(f"create role {role} login replication password 'hunter2'")
        set_uri(shop, part, there.server.uri(there.name, role, "hunter2"))
        try:
            yield
        finally:
            there.execute(f"drop role {role}")


def a_lost_slot(shop: PipelineUnderTest) -> Iterator[None]:
    shop.catch_up().assert_well()
    shop.source.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s",
                        [shop.source.name])  # fmt: skip
    yield


def a_table_with_rows_of_others(shop: PipelineUnderTest) -> Iterator[None]:
    shop.destination.execute("create table items (id int primary key, what text)")
    shop.destination.execute("insert into items values (1, 'theirs')")
    yield


def a_column_that_does_not_fit(shop: PipelineUnderTest) -> Iterator[None]:
    shop.destination.execute("create table items (id date primary key, what text)")
    yield
    shop.destination.execute("drop table items; create table items (id int primary key)")
    yield


def a_server_out_of_reach(shop: PipelineUnderTest) -> Iterator[None]:
    for part in PARTS:
        set_uri(shop, part, "postgresql://me:hunter2@127.0.0.1:1/x")
        yield
    set_lake(shop, "http://127.0.0.1:1")
    yield


def a_wrong_password(shop: PipelineUnderTest) -> Iterator[None]:
    for part in PARTS:
        set_uri(shop, part, with_password(database(shop, part).uri, "hunter2"))
        yield


def a_database_that_does_not_exist(shop: PipelineUnderTest) -> Iterator[None]:
    for part in PARTS:
        set_uri(shop, part, database(shop, part).server.uri("nowhere"))
        yield


TROUBLES: dict[str, Trouble] = dict(
    zip(
        documented(),
        (
            a_mistake_in_the_file,
            a_reference_that_leads_nowhere,
            a_table_that_is_not_there,
            a_pipeline_of_a_dag,
            a_table_that_must_not_be_published,
            a_missing_privilege,
            a_lost_slot,
            a_table_with_rows_of_others,
            a_column_that_does_not_fit,
            a_server_out_of_reach,
            a_wrong_password,
            a_database_that_does_not_exist,
        ),
        strict=True,
    )
)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_check_and_run_answer_with_the_documented_code(shop: PipelineUnderTest, trouble: str) -> None:
    for _ in TROUBLES[trouble](shop):
        checked = shop.pgetl("check")
        assert checked.code == documented()[trouble], checked
        said = shop.catch_up()
        assert said.code == documented()[trouble], said
        for each in (checked, said):
            each.assert_presentable()
