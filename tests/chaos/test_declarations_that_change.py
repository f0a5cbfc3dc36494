"""What is declared of a table changes while the shop does: whoever dies over it, and whatever is declared by then, in
the end the destination has what the declaration says, value by value, and the other tables were never touched."""

from dataclasses import replace

import pytest

from tests.comparing import assert_equal
from tests.runs import KILLED, Runs
from tests.shop import SMALL_SHOP, ShopTable, small_file
from tests.trade import Changes

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("source_server", [16], indirect=True)]

_ORDERS, *_OTHERS = SMALL_SHOP
_WHOLE = small_file()
_SOME = _WHOLE + '\n[[table]]\nname = "public.orders"\nwhere = "id > 100"\ndestination = "archive.some"\n'
_AS_SOME = replace(_ORDERS, where="id > 100", destination="archive.some")


def _die_at(runs: Runs, failpoint: str) -> None:
    run = runs.start(PGETL_FAILPOINT=failpoint)
    assert run.wait(120) == KILLED, f"{failpoint} was never passed\n{run.said()}"


def _assert_put_right(runs: Runs, orders: ShopTable, text: str) -> None:
    runs.text = text
    with Changes(runs.databases.source) as changes:
        changes.wait_for(5)
        assert runs.until_caught_up() == 0, runs.log
    assert runs.until_caught_up() == 0, runs.log
    assert_equal(runs.databases, [orders, *_OTHERS])
    runs.assert_settled()


def _copies(runs: Runs) -> dict[str, int]:
    """How often each table was copied."""
    statement = """select table_name, count(*) from pgetl.history where phase ->> 'phase' = 'FinishedCopy' group by 1"""
    return dict(runs.databases.source.execute(statement))


@pytest.mark.slow
def test_the_run_dies_over_a_declaration_that_changes(runs: Runs) -> None:
    _assert_put_right(runs, _ORDERS, _WHOLE)
    runs.text = _SOME
    with Changes(runs.databases.source):
        _die_at(runs, "prepare.published")
    _assert_put_right(runs, _ORDERS, _WHOLE)
    runs.text = _SOME
    with Changes(runs.databases.source):
        _die_at(runs, "prepare.reset")
        _die_at(runs, "prepare.published")
        _die_at(runs, "copy.published")
    _assert_put_right(runs, _AS_SOME, _SOME)
    copies = _copies(runs)
    assert copies.pop("orders") >= 3
    assert set(copies.values()) == {1}


@pytest.mark.slow
def test_a_copy_under_way_is_not_taken_for_what_is_declared_by_then(runs: Runs) -> None:
    """Its rows are those of the former filter, and it may still be alive when the next run prepares."""
    runs.text = small_file(workers=1)
    with Changes(runs.databases.source):
        _die_at(runs, "copy.publishing")
    _assert_put_right(runs, _AS_SOME, _SOME)


@pytest.mark.slow
def test_a_copy_of_a_table_that_is_declared_no_longer_leaves_nothing(runs: Runs) -> None:
    runs.text = small_file(group="8KiB", workers=1)
    with Changes(runs.databases.source):
        _die_at(runs, "copy.publishing")
    assert runs.staged()
    runs.text = runs.text.replace('tables = ["public.*"]', 'tables = ["public.*"]\nexclude = ["public.orders"]')
    assert runs.until_caught_up() == 0, runs.log
    assert_equal(runs.databases, _OTHERS)
    runs.assert_settled()
