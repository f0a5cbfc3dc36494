"""What a look at the source's catalog makes of the tables that are followed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_pgetl.engine.model.phases import DataSync, Errored, Ready, TableState
from airflow_provider_pgetl.engine.model.tables import (
    Column,
    CopiedSelection,
    GeneratedColumn,
    PgType,
    Sender,
    TableName,
    TableSchema,
)
from airflow_provider_pgetl.engine.prepare.source_watch import (
    _GONE,
    Interruption,
    drifted,
    interruptions,
    moved_partitions,
    mute_partitions,
    unsent_identities,
)
from airflow_provider_pgetl.engine.source.drift import (
    Ancestor,
    ColumnForm,
    WatchedColumn,
    WatchedLeaf,
    WatchedSource,
    WatchedTable,
)
from airflow_provider_pgetl.engine.source.published import Member, Namespace, Publication
from airflow_provider_pgetl.engine.source.relations import ReplicaIdentity
from airflow_provider_pgetl.engine.state.store import TableRecord

ORDERS, AWAY = TableName("public", "orders"), TableName("public", "away")
INT = PgType(23, "integer")
ACTIONS = frozenset({"insert", "update", "delete", "truncate"})
RECORD = TableRecord(ORDERS, TableState(Ready(), attempt=1), relation=7, membership=70)
ROW = Sender(1, xmin=5, owner=10)
OURS = Publication(
    1, "pgetl", "me", True, None, False, True, False, ACTIONS, members={7: Member(70, 7, ORDERS)}, row=ROW
)
COLUMNS = (
    WatchedColumn("id", ColumnForm(23, -1, 1), ""),
    WatchedColumn("twice", ColumnForm(23, -1, 2), "s", generation=40),
)
PRESENT = WatchedTable(7, ORDERS, Namespace(2200), False, ReplicaIdentity("default", ("id",), ("id",)), COLUMNS)
TWICE = GeneratedColumn(Column("twice", INT, "integer", generated=True, number=2), "id * 2", 40)
COPIED = TableSchema(ORDERS, 7, (Column("id", INT, "integer", number=1),), ("id",), generated=(TWICE,), sender=ROW)


def source(*tables: WatchedTable, publication: Publication = OURS) -> WatchedSource:
    return WatchedSource((publication,), {one.oid: one for one in tables})


FOUND: Mapping[str, tuple[WatchedSource, Interruption | None]] = {
    "as it was": (source(PRESENT), None),
    "renamed": (source(replace(PRESENT, name=AWAY)), None),
    "renamed, and another has its name": (
        source(replace(PRESENT, name=AWAY), replace(PRESENT, oid=8)),
        Interruption("it was renamed to public.away at the source, and another table has its name"),
    ),
    "another beside it": (source(PRESENT, replace(PRESENT, oid=8, name=AWAY)), None),
    "dropped": (source(), Interruption("it was dropped at the source", _GONE)),
    "a partition of another that is sent": (
        source(
            replace(PRESENT, ancestors=(Ancestor(9, 2200, AWAY),)),
            publication=replace(OURS, members={**OURS.members, 9: Member(90, 9, AWAY)}),
        ),
        Interruption(
            "it became a partition of public.away at the source, under whose name its changes are sent",
            "Declare public.away in its place; then run again.",
        ),
    ),
    "a partition of another that is not sent": (
        source(replace(PRESENT, ancestors=(Ancestor(9, 2200, AWAY),))),
        None,
    ),
    "a partition that is sent under its own name": (
        source(
            replace(PRESENT, ancestors=(Ancestor(9, 2200, AWAY),)),
            publication=replace(OURS, all_tables=True, via_root=False, members={7: Member(70, 7, ORDERS)}),
        ),
        None,
    ),
    "created again": (
        source(replace(PRESENT, oid=8)),
        Interruption("it was dropped and created again at the source"),
    ),
    "left out": (
        source(PRESENT, publication=replace(OURS, members={})),
        Interruption("it is not published any more"),
    ),
    "put back": (
        source(PRESENT, publication=replace(OURS, members={7: Member(71, 7, ORDERS)})),
        Interruption("it was taken out of the publication"),
    ),
    "of a publication that was altered": (
        source(PRESENT, publication=replace(OURS, row=ROW._replace(xmin=9))),
        Interruption("the publication pgetl was altered, and may have left out changes for a while"),
    ),
    "of a publication whose owner was renamed, and that was altered": (
        source(PRESENT, publication=replace(OURS, owner="you", row=ROW._replace(xmin=9))),
        Interruption("the publication pgetl was altered, and may have left out changes for a while"),
    ),
    "of a publication that has another owner": (
        source(PRESENT, publication=replace(OURS, owner="you", row=ROW._replace(xmin=9, owner=11))),
        None,
    ),
    "of another publication than when it was copied": (
        source(PRESENT, publication=replace(OURS, oid=2, row=Sender(2, 9, 10))),
        None,
    ),
}


@pytest.mark.parametrize(("found", "expected"), FOUND.values(), ids=FOUND.keys())
def test_what_interrupts_a_table(found: WatchedSource, expected: Interruption | None) -> None:
    told = interruptions({ORDERS: RECORD}, {ORDERS: COPIED}, found, 1, managed=True)
    assert told == ({} if expected is None else {ORDERS: expected})


def test_a_publication_of_all_tables_that_was_made_again() -> None:
    record = replace(RECORD, membership=None)
    of_all = replace(OURS, all_tables=True, members={})
    found = source(PRESENT, publication=of_all)
    assert interruptions({ORDERS: record}, {ORDERS: COPIED}, found, 1, managed=False) == {}
    assert interruptions({ORDERS: record}, {ORDERS: COPIED}, found, 2, managed=False) == {
        ORDERS: Interruption("it was taken out of the publication")
    }


@pytest.mark.parametrize("phase", [DataSync(), Errored("a reason", from_phase="Ready")])
def test_tables_that_are_copied_or_errored_are_not_looked_at(phase: Any) -> None:
    records = {ORDERS: replace(RECORD, state=TableState(phase, attempt=1))}
    assert interruptions(records, {}, source(), 1, managed=True) == {}
    assert drifted(records, {ORDERS: COPIED}, source(replace(PRESENT, columns=())), computed=True) == {}


def test_a_column_that_the_source_computes_concerns_who_computes_it_too() -> None:
    found = source(replace(PRESENT, columns=(COLUMNS[0], replace(COLUMNS[1], generation=41))))
    records, schemas = {ORDERS: RECORD}, {ORDERS: COPIED}
    assert drifted(records, schemas, found, computed=True) == {ORDERS: ["twice is not computed as it was"]}
    assert drifted(records, schemas, found, computed=False) == {}
    assert drifted(records, schemas, source(PRESENT), computed=True) == {}


KEYED, FULL = ReplicaIdentity("default", ("id",), ("id",)), ReplicaIdentity("full", (), ("id",))
LEAF = WatchedLeaf(TableName("public", "orders_1"), KEYED, 8, 80, attachment=1)


@pytest.mark.parametrize(
    ("present", "named"),
    [
        (replace(PRESENT, followed=False), "public.orders"),
        (replace(PRESENT, partitioned=True, leaves=(LEAF, replace(LEAF, followed=False))), "public.orders_1"),
    ],
    ids=["the table", "a partition"],
)
def test_what_the_wal_has_no_changes_of(present: WatchedTable, named: str) -> None:
    """Of a partition without a key it does not matter then that its updates would not tell which row they are about."""
    said = [f"the WAL has no changes of {named}, which is unlogged or foreign"]
    assert drifted({ORDERS: RECORD}, {ORDERS: COPIED}, source(present), computed=False) == {ORDERS: said}
    keyless = replace(LEAF, identity=ReplicaIdentity("default"), followed=False)
    assert mute_partitions({ORDERS: RECORD}, source(replace(PRESENT, leaves=(keyless,)))) == {}


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        (LEAF, []),
        (replace(LEAF, attached=True), []),
        (replace(LEAF, attached=True, attachment=2), ["public.orders_1 was detached from public.orders and attached"]),
        (replace(LEAF, oid=9), ["1 of the partitions of public.orders were detached"]),
        (
            replace(LEAF, oid=9, attached=True),
            ["public.orders_1 was attached to public.orders", "1 of the partitions of public.orders were detached"],
        ),
    ],
    ids=["as it was", "attached before it was copied", "detached for a while", "another", "another with rows"],
)
def test_partitions_that_come_and_go(leaf: WatchedLeaf, said: list[str]) -> None:
    copied = replace(COPIED, files=((8, 80),), attachments=((8, 1),))
    found = moved_partitions(copied, replace(PRESENT, partitioned=True, leaves=(leaf,)), {8})
    assert [each[: len(words)] for each, words in zip(found, said, strict=True)] == said


@pytest.mark.parametrize(
    ("files", "emptied", "told"),
    [((80, 91), True, True), ((80, 91), False, False), ((81, 91), True, False), ((80, 90), True, False)],
    ids=["one was truncated", "one was vacuumed", "all were truncated", "none was"],
)
def test_a_partition_that_was_truncated_alone(files: tuple[int, int], emptied: bool, told: bool) -> None:
    copied = replace(COPIED, files=((8, 80), (9, 90)))
    second = replace(LEAF, name=TableName("public", "orders_2"), oid=9)
    leaves = (replace(LEAF, file=files[0], emptied=emptied), replace(second, file=files[1], emptied=emptied))
    found = moved_partitions(copied, replace(PRESENT, partitioned=True, leaves=leaves), {8, 9})
    said = "public.orders_2, a partition of public.orders, was truncated, or written anew: rows that it had may stay"
    assert [each[: len(said)] for each in found] == ([said] if told else [])


def test_a_virtual_column_beside_replica_identity_full_makes_updates_fail() -> None:
    virtual = (*COLUMNS, WatchedColumn("total", ColumnForm(23, -1, 3), "v"))
    full, keyed = replace(PRESENT, identity=FULL, columns=virtual), replace(PRESENT, columns=virtual)
    spread = replace(keyed, partitioned=True, leaves=(LEAF, replace(LEAF, identity=FULL)))
    assert unsent_identities({ORDERS: RECORD}, source(full)) == {ORDERS: ["total"]}
    assert unsent_identities({ORDERS: RECORD}, source(spread)) == {ORDERS: ["total"]}
    for harmless in (keyed, replace(full, columns=COLUMNS), replace(full, partitioned=True, leaves=(LEAF,))):
        assert unsent_identities({ORDERS: RECORD}, source(harmless)) == {}
    inserts = replace(RECORD, selection=CopiedSelection(None, None, True, ORDERS))
    assert unsent_identities({ORDERS: inserts}, source(full)) == {}
