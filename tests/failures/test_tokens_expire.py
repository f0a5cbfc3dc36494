"""A pipeline all of whose servers take a token in place of a password, which is over in seconds."""

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Server
from tests.failures.pipeline import PipelineUnderTest
from tests.iam_gate import KEY, SECRET, IamGate

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.slow]

VALID = 3.0
# Executors of their own, to whom the environment says nothing.
_ELSEWHERE = """
[spark]
master = "local-cluster[1,1,1024]"
submit = "--executor-memory 512m --conf spark.driver.host=127.0.0.1 {blank}"
"""
_BLANK = ("PGETL_SOURCE_URI", "PGETL_DESTINATION_URI", "PGETL_STATE_URI", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture
def gate(server16: Server, tmp_path: Path) -> Iterator[IamGate]:
    folder = tmp_path / "gate"
    folder.mkdir()
    with IamGate(server16, folder, VALID) as gate:
        yield gate


@pytest.mark.parametrize("signs", ["the machine", "keys of the URI, executors elsewhere"])
def test_it_copies_and_goes_on_after_every_token_of_its_beginning_is_over(
    shop: PipelineUnderTest, gate: IamGate, signs: str
) -> None:
    keys = f"&aws_access_key_id={KEY}&aws_secret_access_key={quote(SECRET, safe='')}"
    for name, database in (("SOURCE", shop.source), ("DESTINATION", shop.destination), ("STATE", shop.state)):
        uri = gate.uri(database.name)
        shop.environment[f"PGETL_{name}_URI"] = uri if signs == "the machine" else uri + keys
    if signs == "the machine":
        shop.environment |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    else:
        shop.more = _ELSEWHERE.format(blank=" ".join(f"--conf spark.executorEnv.{name}=" for name in _BLANK))

    running = shop.follow()
    time.sleep(VALID + 1.1)
    before = len(gate.said)
    for place in (shop.source, shop.destination, shop.state):
        place.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid()"
        )
    shop.change_something()
    running.until(shop.arrives("select 1 from orders where note = 'later'"), "the change arrived")
    said = running.stop()

    said.assert_presentable()
    assert said.code == 0, said
    for word in (SECRET, quote(SECRET, safe=""), "X-Amz-Signature", "rds-db"):
        assert word not in said.out + said.err
    assert len(gate.said) > before
    assert set(gate.said) == {"accepted"}
    shop.assert_nothing_lost()
