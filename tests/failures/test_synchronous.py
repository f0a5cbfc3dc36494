"""Servers whose commits wait for a synchronous standby that is not there: told before anything hangs."""

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Databases, Server
from tests.failures.pipeline import PipelineUnderTest

pytestmark = pytest.mark.servers

_AWAY = (
    "wait for a synchronous standby: synchronous_standby_names asks for 2 more than are connected. Bring the standby"
)


def source(shop: PipelineUnderTest, server: Server) -> None:
    shop.databases = Databases(server.create_database("source"), shop.destination)
    shop.fill()


def destination(shop: PipelineUnderTest, server: Server) -> None:
    shop.databases = Databases(shop.source, server.create_database("destination"))


def state(shop: PipelineUnderTest, server: Server) -> None:
    shop.state = server.create_database("state")


def test_a_commit_that_would_hang_is_told_of_each_server(shop: PipelineUnderTest, own_server: Server) -> None:
    databases, kept = shop.databases, shop.state
    for place, name in ((state, "the state database"), (destination, "the destination"), (source, "the source")):
        shop.databases, shop.state = databases, kept
        place(shop, own_server)
        own_server.configure({"synchronous_standby_names": "FIRST 2 (away, further)"})
        said = shop.catch_up()
        assert (said.code, f"Commits in {name}" in said.complaint, _AWAY in said.complaint) == (
            1 if place is state else 3,
            True,
            True,
        ), said
        own_server.configure({"synchronous_standby_names": ""})
    assert shop.slots() == []
    shop.assert_nothing_lost()
    own_server.configure({"synchronous_standby_names": "*"})
    said = shop.pgetl("check")
    own_server.configure({"synchronous_standby_names": ""})
    assert "synchronous_standby_names = '*' means this pipeline's stream, too" in said.out + said.err
