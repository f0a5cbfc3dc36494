from dataclasses import replace

from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.engine.terms import Terms

WHOLE = Terms(None, None, False, TableName("public", "orders"))
SOME = Terms(frozenset({"id", "note"}), "(id > 7)", True, TableName("archive", "orders"))
UPSERTED = replace(WHOLE, form={"mode": "upsert", "numeric": "text"})


def test_differences_are_named_as_they_are_declared() -> None:
    assert WHOLE.differences(WHOLE) == ()
    assert WHOLE.differences(SOME) == ("columns", "where", "insert_only", "destination")
    assert SOME.differences(replace(SOME, where=None)) == ("where",)


def test_a_list_of_all_columns_is_another_thing_than_none() -> None:
    """New columns of the source belong to the one and not to the other."""
    assert WHOLE.differences(replace(WHOLE, columns=frozenset({"id", "note"}))) == ("columns",)


def test_what_the_destination_makes_of_it_differs_by_its_own_keys() -> None:
    assert UPSERTED.differences(replace(UPSERTED, form={"mode": "history", "numeric": "text"})) == ("mode",)
    assert UPSERTED.differences(WHOLE) == WHOLE.differences(UPSERTED) == (), "of another kind of destination"


def test_terms_survive_json() -> None:
    assert [Terms.from_json(terms.as_json()) for terms in (WHOLE, SOME, UPSERTED)] == [WHOLE, SOME, UPSERTED]
