"""One Airflow for all tests of this package: half a minute until it runs, and a minute until all tables are Ready."""

from collections.abc import Iterator

import pytest

from tests.processes.replica import Replica, replicated_shop


@pytest.fixture(scope="package")
def running_replica() -> Iterator[Replica]:
    with replicated_shop() as replica:
        yield replica


@pytest.fixture
def settled(running_replica: Replica) -> Replica:
    """With all tables Ready before the test, which only looks at it; tasks may still be on their way to say so."""
    running_replica.wait_until_ready()
    return running_replica


@pytest.fixture
def replica(running_replica: Replica) -> Iterator[Replica]:
    """Settled before the test; afterwards settled again, and equal, whatever the test did."""
    running_replica.wait_until_settled()
    yield running_replica
    running_replica.wait_until_settled()
    running_replica.assert_equal()
