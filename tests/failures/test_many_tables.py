"""Coordination costs the tables that changed, not all there are."""

import pytest

from tests.failures.pipeline import PipelineUnderTest

pytestmark = pytest.mark.servers

TABLES = 60

_READ = """
select pg_stat_clear_snapshot(), sum(seq_tup_read + idx_tup_fetch)::int8
from pg_stat_user_tables where relname = 'table_schemas'
"""


def test_many_tables_are_told_of_together(shop: PipelineUnderTest) -> None:
    """If each event of each table read all schemas again, it would be some hundred times as many."""
    for number in range(TABLES):
        shop.source.execute(f"create table t{number} (id int primary key); insert into t{number} values (1)")
    shop.declared = ("public.*",)
    shop.catch_up().assert_well()
    assert set(shop.phases().values()) == {"Ready"}
    ((changes,),) = shop.state.execute("select changes from pgetl.pipelines")
    assert changes < TABLES
    ((_, read),) = shop.state.execute(_READ)
    assert read < 100 * TABLES
