"""A value that PostgreSQL can hold, and cannot send: as text a bytea doubles, and 1 GB is the end."""

from pathlib import Path

import pytest

from tests.failures.pipeline import PipelineUnderTest

pytestmark = [pytest.mark.servers, pytest.mark.slow]

_LARGE = "insert into big values (2, convert_to(repeat('x', 560000000), 'UTF8'))"
_REMEDY = "as PostgreSQL writes it, which it cannot; a bytea doubles where it is written as text. Make it smaller, or"


@pytest.fixture
def lake(shop: PipelineUnderTest, tmp_path: Path) -> PipelineUnderTest:
    """Values come as text."""
    shop.source.execute("create table big (id int primary key, v bytea); insert into big values (1, 'x')")
    shop.declared += ("public.big",)
    shop.place = f'type = "delta"\nuri = "{tmp_path / "lake"}"'
    return shop


def test_a_copy_makes_the_table_errored_and_others_go_on(lake: PipelineUnderTest) -> None:
    lake.source.execute(_LARGE)
    said = lake.catch_up()
    assert (said.code, _REMEDY in said.complaint) == (4, True), said
    assert lake.phases() == {"public.items": "Ready", "public.orders": "Ready", "public.big": "Errored"}


def test_a_stream_that_has_come_to_it_ends_and_says_why(lake: PipelineUnderTest) -> None:
    lake.catch_up().assert_well()
    lake.source.execute(_LARGE)
    said = lake.catch_up()
    assert (said.code, _REMEDY in said.complaint) == (3, True), said
    lake.source.execute("delete from big where id = 2")
    lake.pgetl("destroy", "--yes").assert_well()
    assert lake.catch_up().code == 0
