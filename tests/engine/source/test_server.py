"""The lineage of a real server, and of one that was promoted."""

import shutil
from contextlib import closing
from pathlib import Path

from psycopg import pq

from airflow_provider_pgetl.engine.model.positions import Boundary, compare
from airflow_provider_pgetl.engine.source.connecting import Connection, connect_replication
from airflow_provider_pgetl.engine.source.server import Present, parse_history, read_lineage
from airflow_provider_pgetl.testing.servers.installations import Account
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server
from tests.folders import reachable


def present(uri: str) -> Present:
    pgconn = connect_replication(uri, "pgetl test")
    try:
        return read_lineage(pgconn, "p")
    finally:
        pgconn.finish()


def test_a_server_says_who_it_is(connection: Connection, replication: pq.abc.PGconn, source: Database) -> None:
    source.execute("create publication p")
    found = read_lineage(replication, "p")
    assert source.execute(
        """select c.system_identifier::text, d.oid, p.oid from pg_control_system() c, pg_database d, pg_publication p
           where datname = current_database()"""
    ) == [(found.lineage.system, found.lineage.database, found.lineage.publication)]
    assert (found.lineage.timeline, found.lineage.switch_points) == (1, ())
    ((end,),) = source.execute("select pg_current_wal_flush_lsn()::text")
    assert Boundary(0) < found.wal_end <= Boundary.parse(end)


def test_a_publication_that_was_made_again_is_another(
    connection: Connection, replication: pq.abc.PGconn, source: Database
) -> None:
    source.execute("create publication p")
    before = read_lineage(replication, "p")
    source.execute("drop publication p")
    without = read_lineage(replication, "p")
    reason = compare(before.lineage, without.lineage, before.wal_end, without.wal_end)
    assert reason == "the publication was dropped"
    source.execute("create publication p")
    after = read_lineage(replication, "p")
    reason = compare(before.lineage, after.lineage, before.wal_end, after.wal_end)
    assert reason is not None
    assert "publication" in reason


def test_a_promoted_copy_is_told_from_its_origin(tmp_path: Path) -> None:
    """A cold copy of the data folder, promoted by an empty recovery, goes on in a timeline of its own."""
    data = reachable(tmp_path) / "data"
    with Server.start(18) as origin:
        origin.create_database("shop")
        origin.connect("shop").execute("create publication p")
        before = present(origin.uri("shop"))
        origin.stop()
        shutil.copytree(origin.data, data)
        origin.resume()
        later = present(origin.uri("shop"))
    (data / "recovery.signal").touch()
    account = Account.for_servers()
    for path in (data, *data.rglob("*")):
        account.own(path, 0o700 if path.is_dir() else 0o600)
    with Server.start(18, {"restore_command": "false", "recovery_target_action": "promote"}, data) as promoted:
        with closing(promoted.connect("shop")) as session:
            while session.execute("select pg_is_in_recovery()").fetchone() == (True,):
                pass
        after = present(promoted.uri("shop"))
    assert (after.lineage.timeline, len(after.lineage.switch_points)) == (2, 1)
    (_, switched) = after.lineage.switch_points[0]
    assert compare(before.lineage, after.lineage, before.wal_end, after.wal_end) is None
    beyond = max(Boundary(switched.lsn + 1), later.wal_end)
    reason = compare(later.lineage, after.lineage, beyond, after.wal_end)
    assert reason is not None
    assert "branched" in reason


def test_a_history_file_is_read() -> None:
    text = "1\t0/5000000\tno recovery target specified\n\n# a comment\n2\t16/B374D848\tbefore 2024-01-01\n"
    assert parse_history(text) == ((1, Boundary(0x5000000)), (2, Boundary.parse("16/B374D848")))
