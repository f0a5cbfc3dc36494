"""The comparison of a source with its replica finds every difference, and none where there is none."""

import pytest

from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing import comparing
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases

pytestmark = pytest.mark.parametrize("source_server", [18], indirect=True)

THINGS = TableName("public", "things")
_THINGS = """create table things (id int primary key, name text, price numeric, tags text[], at timestamptz);
             insert into things
             select n, 'thing ' || n, n / 7.0, array['a', null], timestamptz '2024-01-01 12:00+00'
             from generate_series(1, 100) n"""


@pytest.fixture
def pair(databases: Databases) -> Databases:
    for database in databases:
        database.execute(_THINGS)
    return databases


def _differences(pair: Databases) -> list[str]:
    with pair.source.connect() as here, pair.destination.connect() as there:
        return comparing.differences(here, there, [THINGS])


def test_the_same_rows_are_equal_whatever_their_order_and_the_sessions_settings(pair: Databases) -> None:
    pair.destination.execute("update things set id = id where id % 2 = 0")
    pair.destination.execute(f"alter database \"{pair.destination.name}\" set timezone = 'Asia/Tokyo'")
    assert _differences(pair) == []


@pytest.mark.parametrize(
    "change",
    [
        "delete from things where id = 50",
        "insert into things values (101)",
        "update things set name = null where id = 50",
        "update things set price = price * 1.0000001 where id = 50",
        "update things set tags = array['null', 'a'] where id = 50",
        "update things set at = at + interval '1 microsecond' where id = 50",
        "alter table things drop column at",
        "drop table things",
    ],
)
def test_any_difference_is_found(pair: Databases, change: str) -> None:
    pair.destination.execute(change)
    [told] = _differences(pair)
    assert told.startswith("public.things")


def test_a_difference_is_shown_with_the_rows(pair: Databases) -> None:
    pair.destination.execute("update things set name = 'wrong' where id = 50")
    [told] = _differences(pair)
    assert "100 rows at the source, 100 in the destination" in told
    assert 'only in the source: (50,"thing 50"' in told
    assert "only in the destination: (50,wrong" in told


def test_rows_are_counted_and_a_missing_table_is_none(pair: Databases) -> None:
    with pair.source.connect() as session:
        assert comparing.count(session, THINGS) == 100
        assert comparing.count(session, TableName("public", "nothing")) is None


def test_of_what_is_selected_only_that_is_compared_where_it_is(pair: Databases) -> None:
    pair.source.execute("alter table things add doubled int generated always as (id * 2) stored")
    pair.destination.execute("delete from things where id > 50; update things set name = 'wrong'")
    pair.destination.execute("alter table things rename to elsewhere")
    elsewhere = TableName("public", "elsewhere")
    with pair.source.connect() as here, pair.destination.connect() as there:

        def equal(columns: tuple[str, ...], where: str | None) -> bool:
            return not comparing.differences(here, there, [comparing.Selection(THINGS, elsewhere, columns, where)])

        assert equal(("id", "price"), "id <= 50")
        assert not equal(("id", "price"), "id <= 51")
        assert not equal((), "id <= 50")
        there.execute("update elsewhere set name = 'thing ' || id")
        assert equal((), "id <= 50"), "a generated column that is only at the source does not count"
