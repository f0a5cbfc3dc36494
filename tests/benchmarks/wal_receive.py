"""How fast the stream is received and gathered: against pg_recvlogical, which throws everything away, in one run.

    python -m tests.benchmarks.wal_receive [MAJOR] [ROWS]

A backlog of ROWS inserts (a million) and half as many updates, six columns, is read three times by each, in turns.
Prints seconds, the reader's own CPU seconds, and the ratio of rates; then what gathering alone costs per row.
"""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from psycopg import pq

from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.wal.assembler import Assembler
from airflow_provider_pgetl.engine.wal.pgoutput import Begin, Commit, Keepalive, Relation, RelationColumn
from airflow_provider_pgetl.engine.wal.replication_stream import ReplicationStream
from airflow_provider_pgetl.engine.wal.spool import Budget, Spool
from airflow_provider_pgetl.testing.servers.postgres_servers import PASSWORD, Database, Server
from tests.engine.changes import pgoutput
from tests.engine.wal.control_messages import encode

TABLE = "create table t (id int primary key, name text, amount numeric, at timestamptz, flag bool, note text)"
INSERT = """
insert into t
select g, 'name ' || g, g / 7.0, timestamptz '2024-01-01' + g * interval '1 s', g % 2 = 0, md5(g::text)
from generate_series({first}, {last}) g
"""
TRANSACTIONS = 100
MEMORY = 256 << 20


@dataclass(frozen=True)
class Measured:
    seconds: float
    cpu_seconds: float

    def __str__(self) -> str:
        return f"{self.seconds:6.2f} s, {self.cpu_seconds:5.2f} s CPU"


def fill(database: Database, rows: int) -> Boundary:
    """The backlog; answers a point behind it."""
    database.execute(TABLE)
    database.execute("create publication p for all tables")
    database.execute("select pg_create_logical_replication_slot('s', 'pgoutput')")
    each = rows // TRANSACTIONS
    for first in range(1, rows, each):
        database.execute(INSERT.format(first=first, last=first + each - 1))
        database.execute(f"update t set amount = amount + 1 where id between {first} and {first + each // 2 - 1}")
    return Boundary.parse(str(database.execute("select pg_current_wal_flush_lsn()")[0][0]))


def receive_and_gather(database: Database, slot: str, point: Boundary) -> int:
    """The rows gathered up to the point."""
    connection = pq.PGconn.connect(f"{database.uri}?replication=database&client_encoding=UTF8".encode())
    with ReplicationStream.start(connection, slot, ("p",), binary=True) as stream:
        budget = Budget(MEMORY)
        assembler: Assembler[int] = Assembler(lambda oid, _: oid, lambda: Spool(budget))
        gathered, reached = 0, False
        while not reached:
            for event in assembler.feed_many(stream.receive(1)):
                reached = reached or (isinstance(event, Keepalive) and event.position >= point)
                if isinstance(event, Commit):
                    gathered += assembler.take().steps.rows
        return gathered


def pg_recvlogical(database: Database, slot: str, point: Boundary) -> None:
    command = [
        *(str(database.server.installation.program("pg_recvlogical")), "--start", f"--slot={slot}", "--file=/dev/null"),
        *(f"--endpos={point}", "--option=proto_version=1", "--option=publication_names=p", "--option=binary=true"),
        *("--no-loop", "--fsync-interval=0", "--status-interval=0"),
        *("--host=127.0.0.1", f"--port={database.server.port}", "--username=postgres", f"--dbname={database.name}"),
    ]
    subprocess.run(command, check=True, env={**os.environ, "PGPASSWORD": PASSWORD})


READERS = {"pgetl": resource.RUSAGE_SELF, "pg_recvlogical": resource.RUSAGE_CHILDREN}


def read(name: str, database: Database, slot: str, point: Boundary, expected: int) -> None:
    if name == "pg_recvlogical":
        pg_recvlogical(database, slot, point)
    else:
        assert receive_and_gather(database, slot, point) == expected


def measured(who: int, run: Callable[[], object]) -> Measured:
    began, before = time.perf_counter(), resource.getrusage(who)
    run()
    after = resource.getrusage(who)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(time.perf_counter() - began, cpu)


def against_pg_recvlogical(major: int, rows: int) -> None:
    with Server.start(major, {"max_wal_size": "8GB", "shared_buffers": "512MB"}) as server:
        database = server.create_database("source")
        point = fill(database, rows)
        expected = rows + rows // TRANSACTIONS // 2 * TRANSACTIONS

        best: dict[str, Measured] = {}
        for turn in range(3):
            for name, who in READERS.items():
                slot = f"s{turn}_{name}"
                database.execute("select pg_copy_logical_replication_slot('s', %s)", [slot])
                result = measured(who, lambda name=name, slot=slot: read(name, database, slot, point, expected))
                best[name] = min(best.get(name, result), result, key=lambda one: one.seconds)
                print(f"PostgreSQL {major}  {name:15} {result}", flush=True)
        ratio = best["pg_recvlogical"].seconds / best["pgetl"].seconds
        rate = expected / best["pgetl"].seconds
        print(f"pgetl receives and gathers {rate:,.0f} changes/s: {ratio:.2f} × pg_recvlogical's rate, best of three")


def gathering_alone(rows: int) -> None:
    columns = (RelationColumn("id", 23, -1, key=True),)
    described = encode(Relation(1, TableName("public", "t"), "default", columns))
    row = pgoutput.insert(1, [struct.pack("!i", 7), b"some name", b"12.5", b"2024-01-01", b"t", b"x" * 32])
    large = [_begin(1), described, *(bytes(bytearray(row)) for _ in range(rows)), _commit(1)]
    small = [described]
    for lsn in range(rows // 2):
        small += [_begin(lsn), row, row, _commit(lsn)]
    print(f"gathering: {_gathered(large) / rows:.0f} ns per row of one large transaction,", end=" ")
    print(f"{_gathered(small) / (rows // 2):.0f} ns per transaction of two rows")


def _begin(lsn: int) -> bytes:
    return encode(Begin(lsn, 0, 1))  # type: ignore[arg-type]  # any number will do


def _commit(lsn: int) -> bytes:
    return encode(Commit(lsn, Boundary(lsn + 1), 0))  # type: ignore[arg-type]  # any number will do


def _gathered(payloads: list[bytes]) -> float:
    """Nanoseconds of CPU until a batch of it is there."""
    budget = Budget(MEMORY)
    assembler: Assembler[int] = Assembler(lambda oid, _: oid, lambda: Spool(budget))
    began = time.process_time()
    for start in range(0, len(payloads), 8192):
        for _ in assembler.feed_many(payloads[start : start + 8192]):
            pass
    assembler.take()
    return (time.process_time() - began) * 1e9


def main() -> None:
    major, rows = (int(value) for value in (*sys.argv[1:], *("18", "1000000")[len(sys.argv) - 1 :]))
    gathering_alone(rows)
    against_pg_recvlogical(major, rows)


if __name__ == "__main__":
    main()
