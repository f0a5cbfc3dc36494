"""A standby beside a server: the primary's files, a signal, and where to follow."""

import shutil
from contextlib import closing

from airflow_provider_pgetl.testing.servers.installations import Account
from airflow_provider_pgetl.testing.servers.postgres_servers import Server


def start_standby(primary: Server, *, slot: str | None = None, **settings: str | bool) -> Server:
    """The primary is stopped for as long as its files are copied, and what is copied goes with it. `slot`: a physical
    slot, made for the standby."""
    data = primary.home / "standby"
    if slot is not None:
        with primary.connect() as connection:
            connection.execute("select pg_create_physical_replication_slot(%s, true)", [slot])
        settings = {"primary_slot_name": slot, **settings}
    primary.stop()
    shutil.copytree(primary.data, data)
    shutil.rmtree(data / "pg_replslot")
    (data / "pg_replslot").mkdir()
    (data / "standby.signal").touch()
    account = Account.for_servers()
    for path in (data, *data.rglob("*")):
        account.own(path, 0o700 if path.is_dir() else 0o600)
    primary.resume()
    following = {"primary_conninfo": primary.socket_uri(), "hot_standby_feedback": True, **settings}
    return Server.start(primary.major, {**primary.settings, **following}, data)


def promote(standby: Server) -> None:
    with standby.connect() as connection:
        connection.execute("select pg_promote()")


def both(primary: Server, standby: Server, dbname: str) -> str:
    """The URI of whichever is the primary."""
    there = f"127.0.0.1:{primary.port}"
    return primary.uri(dbname).replace(there, f"{there},127.0.0.1:{standby.port}")


def caught_up(primary: Server, standby: Server) -> bool:
    with closing(primary.connect()) as there, closing(standby.connect()) as here:
        row = there.execute("select pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        return here.execute("select pg_last_wal_replay_lsn() >= %s::pg_lsn", row).fetchone() == (True,)


def slots(server: Server) -> dict[str, tuple[bool, bool]]:
    """The logical slots by name: whether they are synchronised from elsewhere, and permanent."""
    with server.connect() as connection:
        rows: list[tuple[str, bool, bool]] = connection.execute(
            "select slot_name::text, synced, not temporary from pg_replication_slots where slot_type = 'logical'"
        ).fetchall()
    return {name: (synced, permanent) for name, synced, permanent in rows}
