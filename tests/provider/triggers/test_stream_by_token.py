"""The streaming worker with connections whose password is a token: it makes a new one wherever it connects again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from airflow_provider_pgetl.declarations import Postgres, declare
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases, Server
from airflow_provider_pgetl.triggers.pgetl import ApplyTrigger
from tests.iam_gate import KEY, REGION, SECRET, IamGate
from tests.provider.running import pipeline_of
from tests.provider.triggers.test_apply import children, running, streamed
from tests.waiting import until_in_loop

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("source_server", [16], indirect=True)]
VALID = 3.0


@pytest.fixture
def gate(source_server: Server, tmp_path: Path) -> Iterator[IamGate]:
    with IamGate(source_server, tmp_path, VALID) as gate:
        yield gate


def test_a_stream_that_is_cut_off_goes_on_in_the_same_worker(
    small_shop: Databases, gate: IamGate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, database in (("SHOP_DB", small_shop.source), ("REPLICA_DB", small_shop.destination)):
        parts = {"conn_type": "postgres", "host": "127.0.0.1", "port": gate.port, "login": "postgres"}
        given = {**parts, "schema": database.name, "extra": {"iam": True, "aws_conn_id": "signer"}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(given))
    aws = {"conn_type": "aws", "login": KEY, "password": SECRET, "extra": {"region_name": REGION}}
    monkeypatch.setenv("AIRFLOW_CONN_SIGNER", json.dumps(aws))
    declared = declare("shop", source_conn_id="shop_db", tables=["public.orders"], destination=Postgres("replica_db"))
    with closing(pipeline_of(declared)) as pipeline:
        pipeline.prepare()
    trigger = ApplyTrigger(declared.as_json())
    query = "select active_pid from pg_replication_slots where slot_name like 'pgetl_shop%%' and active"

    async def scenario() -> None:
        async with running(trigger) as task:
            await until_in_loop(lambda: streamed(small_shop) and small_shop.source.execute(query))
            (child,) = children()
            await asyncio.sleep(VALID + 1.1)
            ((before,),) = small_shop.source.execute(query)
            small_shop.source.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid()"
            )
            await until_in_loop(lambda: small_shop.source.execute(query) not in ([], [(before,)]))
            assert [one.pid for one in children()] == [child.pid]
            assert SECRET not in " ".join(child.cmdline())
            assert not task.done()

    asyncio.run(scenario(), debug=True)
    assert set(gate.said) == {"accepted"}
    assert SECRET not in json.dumps(trigger.serialize()) + caplog.text
    assert "X-Amz" not in caplog.text
