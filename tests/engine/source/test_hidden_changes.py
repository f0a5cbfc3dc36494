"""What the catalog shows of an ALTER after which the source describes a table as before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.source.connecting import connect
from airflow_provider_pgetl.engine.source.drift import Storage
from airflow_provider_pgetl.engine.source.hidden_changes import COMPUTED_ANEW, Look, Marks, hidden_change, read_look
from airflow_provider_pgetl.engine.source.server import flushed_position
from airflow_provider_pgetl.testing.servers.postgres_servers import Database

INT = PgType(23, "integer")
ID, N = Column("id", INT, "integer", number=1, altered=5), Column("n", INT, "integer", number=2, altered=5)
COPIED = TableSchema(TableName("public", "t"), 7, (ID, N), ("id",), files=((7, 70),))
RENAMED = replace(COPIED, columns=(ID, replace(N, name="m", altered=6)))


def marks(file: int = 70, altered: int = 5, **numbers: int) -> Marks:
    return Marks(numbers, Storage({7: file}, dict.fromkeys(numbers, altered)))


def test_a_name_that_belongs_to_another_column() -> None:
    assert hidden_change(COPIED, marks(id=1, n=2)) is None
    assert hidden_change(COPIED, marks(id=1, n=3)) == "n was dropped and added again"
    assert hidden_change(COPIED, marks(id=2, n=1)) is not None
    assert hidden_change(RENAMED, marks(id=1, m=2, n=3)) is None, "RELATION shows it"
    unknown = replace(COPIED, columns=(replace(ID, number=0), replace(N, number=0)))
    assert hidden_change(unknown, marks(id=8, n=9)) is None


def test_what_was_altered_since_as_well_is_found_when_it_is_read() -> None:
    assert hidden_change(COPIED, marks(id=1, later=2)) is None
    assert hidden_change(COPIED, marks(id=1)) is None
    assert hidden_change(RENAMED, marks(id=1, m=2, altered=6)) is None


def test_rows_that_were_computed_anew() -> None:
    assert hidden_change(COPIED, marks(71, 6, id=1, n=2)) == COMPUTED_ANEW
    assert hidden_change(COPIED, marks(71, id=1, n=2)) is None, "VACUUM FULL"
    assert hidden_change(COPIED, marks(altered=6, id=1, n=2)) is None, "SET DEFAULT"
    moved = Marks({"id": 1, "m": 2}, Storage({7: 71}, {"id": 5, "m": 6}))
    assert hidden_change(RENAMED, moved) is None, "it was renamed, and the last version knows"


def test_a_look_shows_what_was_committed_before_it_and_is_seen() -> None:
    look = Look(Boundary(100), frozenset((9,)), 12, {})
    assert look.shows(CommitLsn(99), 8)
    assert look.shows(CommitLsn(99), 11)
    assert look.shows(CommitLsn(99), (1 << 32) - 5), "before the numbers began again"
    assert not look.shows(CommitLsn(100), 8)
    assert not look.shows(CommitLsn(99), 9)
    assert not look.shows(CommitLsn(99), 12)
    assert not replace(look, following=(1 << 32) - 2).shows(CommitLsn(99), 3)


@pytest.mark.servers
def test_looking_at_tables(source: Database) -> None:
    source.execute("create table t (id int primary key, gone int, n int); alter table t drop gone")
    source.execute("create table p (id int, n int) partition by range (id)")
    source.execute("create table p1 partition of p for values from (0) to (9)")
    oids = [int(str(oid)) for (oid,) in source.execute("select v::regclass::oid from unnest('{t,p,p1}'::text[]) v")]
    with connect(source.uri, "test") as connection, source.connect(autocommit=False) as other:
        before = flushed_position(connection)
        ((xid,),) = other.execute("select (pg_current_xact_id()::text::numeric % 4294967296)::int8").fetchall()
        found = read_look(connection, [*oids, 1])
        assert found.upto >= before
        assert not found.shows(CommitLsn(0), xid)
        with source.connect() as third:
            third.execute("create temp table later ()")
        between = read_look(connection, oids)
        assert xid in between.running
        assert not between.shows(CommitLsn(0), xid)
        assert found.tables.keys() == set(oids)
        assert found.tables[oids[0]].numbers == {"id": 1, "n": 3}
        assert found.tables[oids[0]].nullable == {"n"}
        other.commit()
        source.execute("alter table t drop n, add n int; alter table p alter n type bigint")
        after = read_look(connection, oids)
        assert after.shows(CommitLsn(0), xid)
        assert after.tables[oids[0]].numbers["n"] == 4
        was, now = found.tables[oids[1]].storage, after.tables[oids[1]].storage
        assert was.files.keys() == now.files.keys() == {oids[2]}
        assert was.files != now.files
        assert was.altered != now.altered
