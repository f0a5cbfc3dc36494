"""A group's copy, from a real source into memory."""

from airflow_provider_pgetl.engine.destinations.memory import MemoryDestination
from airflow_provider_pgetl.engine.phases import FinishedCopy
from tests.engine.sync.copying.copies import Copies, public


def test_tables_are_published_at_the_consistent_point(copies: Copies, memory: MemoryDestination) -> None:
    copies.source.execute("create table orders (id int primary key, note text)")
    copies.source.execute("insert into orders select g, repeat('x', 100) from generate_series(1, 5000) g")
    copies.source.execute("create table empty (id int primary key)")
    copies.publish()

    result = copies.copy(public("orders"), public("empty"))

    assert result.boundary is not None
    assert set(result.published) == {public("orders"), public("empty")}
    assert copies.phase(public("orders")) == FinishedCopy(result.boundary)
    assert memory.positions(copies.id)[public("orders")].position == result.boundary
    assert {int(row["id"]) for row in memory.rows(public("orders"))} == set(range(1, 5001))
    assert memory.rows(public("empty")) == []
    assert copies.slots() == {result.slot}
