"""What declarations mean, given what is there."""

from collections.abc import Sequence

import pytest

from airflow_provider_pgetl.engine.config.spec import TableSpec
from airflow_provider_pgetl.engine.model.errors import Finding
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.source.matching import Matching, match
from airflow_provider_pgetl.engine.source.relations import Persistence, RelationKind, SourceRelation


def relation(
    name: str, kind: RelationKind = "table", persistence: Persistence = "permanent", root: str | None = None
) -> SourceRelation:
    above = TableName(*root.split(".", 1)) if root else None
    return SourceRelation(TableName(*name.split(".", 1)), abs(hash(name)), kind, persistence, above)


PRESENT = (
    relation("public.customers"),
    relation("public.orders"),
    relation("public.order_lines"),
    relation("public.Weird.Name"),
    relation("public.totals", "view"),
    relation("public.remote", "foreign table"),
    relation("public.scratch", persistence="unlogged"),
    relation("public.events", "partitioned table"),
    relation("public.events_2024", root="public.events"),
    relation("inventory.parts"),
    relation("inventory.stock"),
    relation("pgetl.pipelines"),
)


def found(*declared: str | TableSpec, exclude: Sequence[str] = ()) -> Matching:
    specs = [TableSpec(one) if isinstance(one, str) else one for one in declared]
    return match(specs, exclude, PRESENT)


def names(matching: Matching) -> list[str]:
    return [str(one.table) for one in matching.matches]


def only_error(matching: Matching) -> Finding:
    (error,) = [finding for finding in matching.findings if finding.severity == "error"]
    return error


def test_names_and_patterns_come_together_in_order() -> None:
    matching = found("inventory.*", "public.orders")
    assert names(matching) == ["inventory.parts", "inventory.stock", "public.orders"]
    assert matching.findings == ()


def test_a_star_matches_within_a_segment_only() -> None:
    assert names(found("public.order*")) == ["public.order_lines", "public.orders"]
    assert names(found("inv*.*s")) == ["inventory.parts"]


def test_a_pattern_takes_only_what_can_be_followed_by_itself() -> None:
    matching = found("public.*")
    assert names(matching) == [
        "public.Weird.Name",
        "public.customers",
        "public.events",
        "public.order_lines",
        "public.orders",
    ]


def test_an_unlogged_table_is_passed_over_with_a_warning_unless_excluded() -> None:
    (warning,) = found("public.*").findings
    assert (warning.severity, warning.table) == ("warning", "public.scratch")
    assert found("public.*", exclude=["public.scratch"]).findings == ()


def test_the_state_is_never_matched() -> None:
    assert "pgetl.pipelines" not in names(found("*.*"))


def test_exclusions_take_away_from_patterns() -> None:
    matching = found("public.*", exclude=["public.order*", "public.scratch"])
    assert "public.orders" not in names(matching)
    assert "public.customers" in names(matching)


def test_a_name_wins_over_a_pattern() -> None:
    special = TableSpec("public.orders", insert_only=True)
    for declared in (("public.*", special), (special, "public.*")):
        (orders,) = [one for one in found(*declared).matches if one.table.name == "orders"]
        assert orders.spec is special


@pytest.mark.parametrize(
    ("declared", "problem", "remedy"),
    [
        ("public.orderz", "There is no table public.orderz", "Did you mean public.orders?"),
        ("Public.Customers", "There is no table Public.Customers", "Did you mean public.customers?"),
        ("public.totals", "is no table that can be followed but a view", "Declare the tables that it shows"),
        ("public.remote", "but a foreign table", "take it out"),
        ("public.scratch", "but an unlogged table", 'ALTER TABLE "public"."scratch" SET LOGGED'),
        ("public.events_2024", "is a partition of public.events", "Declare public.events"),
        ("sales.*", "The pattern sales.* matches no table", "There are tables in inventory, public"),
        ("public.total*", "matches no table", "cannot be followed by itself (view)"),
        ("public.events_*", "matches no table", "(partition)"),
    ],
)
def test_what_was_meant_is_said(declared: str, problem: str, remedy: str) -> None:
    error = only_error(found(declared))
    assert problem in error.problem
    assert remedy in error.remedy
    assert error.table == declared


def test_a_pattern_of_which_everything_is_excluded_matches_nothing() -> None:
    assert "All that it covers is excluded" in only_error(found("inventory.*", exclude=["inventory.*"])).remedy


def test_a_table_cannot_be_declared_and_excluded() -> None:
    assert "excluded as well" in only_error(found("public.orders", exclude=["public.order*"])).problem


def test_an_exclusion_of_nothing_is_a_warning() -> None:
    (warning,) = found("public.orders", exclude=["public.customerz"]).findings
    assert warning.severity == "warning"
    assert warning.remedy == "Did you mean public.customers?"


def test_overlapping_patterns_may_agree_but_not_contradict() -> None:
    assert found("inventory.*", "inventory.p*").findings == ()
    contrary = TableSpec("inventory.p*", insert_only=True)
    assert "ask for different things" in only_error(found("inventory.*", contrary)).problem


def test_two_tables_cannot_go_to_one_destination() -> None:
    moved = TableSpec("public.orders", destination="inventory.parts")
    assert "all go to inventory.parts" in only_error(found(moved, "inventory.parts")).problem


def test_a_destination_of_its_own() -> None:
    (one,) = found(TableSpec("public.orders", destination="lake.sales")).matches
    assert one.destination == TableName("lake", "sales")
