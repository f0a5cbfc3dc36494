"""The sources of the end-to-end tests: a shop of twenty tables, each there for the trouble it makes; and, for tests
that need many runs, a shop of few and small tables: two that change without rest, some that never do.

`create_shop` and `create_small_shop` make and fill them, `pipeline_text` and `small_file` declare them. What happens to
them is in `trade`.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from airflow_provider_pgetl.engine.model.tables import TableName, parse_table, written
from airflow_provider_pgetl.testing.comparing import Selection
from airflow_provider_pgetl.testing.servers.postgres_servers import Database

SHOP_ID = "shop"


@dataclass(frozen=True)
class ShopTable:
    """`name` as a pipeline file writes it. `fill` gets `rows`, the size of the shop."""

    name: str
    create: str
    fill: str = ""
    columns: tuple[str, ...] = ()
    where: str | None = None
    insert_only: bool = False
    destination: str | None = None

    @property
    def table(self) -> TableName:
        return parse_table(self.name)

    @property
    def place(self) -> TableName:
        """Where it is in the destination."""
        return parse_table(self.destination or self.name)

    @property
    def selection(self) -> Selection:
        return Selection(self.table, self.place, self.columns, self.where)

    @property
    def is_plain(self) -> bool:
        """Whether a pattern can declare it."""
        return not (self.columns or self.where or self.insert_only or self.destination)


_TYPES = """
create schema inventory;
create schema "Weird ""Schema";
create type public.mood as enum ('sad', 'so "so"', 'it''s, fine');
create domain public.percentage as numeric(5, 2) check (value between 0 and 100);
"""

SHOP: tuple[ShopTable, ...] = (
    # The large one, filled by the parameter.
    ShopTable(
        "public.clicks",
        """create table public.clicks (
            id bigint primary key, kind int not null, amount numeric(12, 2), note text, at timestamptz, flag bool)""",
        """insert into public.clicks
           select n, n % 17, n * 0.25, 'click ' || n, timestamptz '2024-01-01' + n * interval '1 s', n % 3 = 0
           from generate_series(1, {rows}) n""",
    ),
    # Two that hang together, by cascades.
    ShopTable(
        "public.customers",
        """create table public.customers (
            id int primary key, name text not null, email text unique, tags text[], mood public.mood, balance int)""",
        """insert into public.customers
           select n, 'Customer ' || n, n || '@example.org', array['a', null, 'b "' || n], 'sad', 0
           from generate_series(1, 300) n""",
    ),
    ShopTable(
        "public.orders",
        """create table public.orders (
            customer int references public.customers on update cascade on delete cascade, number int,
            total numeric, placed timestamptz default now(), primary key (customer, number))""",
        "insert into public.orders select n, m, n * m / 7.0 from generate_series(1, 300) n, generate_series(1, 3) m",
    ),
    # A pair whose sum never changes: who sees half of a transaction sees another sum.
    ShopTable(
        "inventory.accounts",
        "create table inventory.accounts (id int primary key, amount bigint not null)",
        "insert into inventory.accounts select n, 1000 from generate_series(1, 50) n",
    ),
    ShopTable(
        "inventory.vaults",
        "create table inventory.vaults (id int primary key, amount bigint not null, filler text)",
        "insert into inventory.vaults select n, 1000, repeat('v', n) from generate_series(1, 50) n",
    ),
    ShopTable("public.never_used", "create table public.never_used (id int primary key, what text)"),
    ShopTable("public.empty_at_first", "create table public.empty_at_first (id int primary key, what text)"),
    # Two levels of partitions; rows move between leaves.
    ShopTable(
        "public.measures",
        """create table public.measures (id int, year int, region text, value float8, primary key (id, year, region))
               partition by range (year);
           create table public.measures_old partition of public.measures for values from (2000) to (2020);
           create table public.measures_new partition of public.measures for values from (2020) to (2040)
               partition by list (region);
           create table public.measures_new_eu partition of public.measures_new for values in ('eu', 'uk');
           create table public.measures_new_rest partition of public.measures_new default""",
        """insert into public.measures
           select n, 2010 + n % 20, (array['eu', 'uk', 'us', 'it''s'])[1 + n % 4], 1 / (n + 0.1)
           from generate_series(1, 2000) n""",
    ),
    # No key, rows that are the same as others, nulls.
    ShopTable(
        "public.sightings",
        """create table public.sightings (what text, how_many int, price real, at timestamp);
           alter table public.sightings replica identity full""",
        """insert into public.sightings
           select nullif('thing ' || n % 20, 'thing 7'), nullif(n % 5, 0), n % 3, timestamp '2024-01-01'
           from generate_series(1, 600) n""",
    ),
    # A megabyte out of line in rows that are updated without it.
    ShopTable(
        "public.documents",
        """create table public.documents (id int primary key, title text, body text, scan bytea);
           alter table public.documents alter body set storage external, alter scan set storage external""",
        """insert into public.documents
           select n, 'Document ' || n, repeat(md5(n::text), 32768), decode(repeat(md5(n::text), 100), 'hex')
           from generate_series(1, 8) n""",
    ),
    # Keys that are moved, and swapped.
    ShopTable(
        "public.seats",
        """create table public.seats (row_no int, seat int, guest text, ticket text, primary key (row_no, seat));
           alter table public.seats alter ticket set storage external""",
        """insert into public.seats select r, s, 'guest ' || r || '/' || s, repeat(md5(r || ' ' || s), 100)
           from generate_series(1, 10) r, generate_series(1, 20) s""",
    ),
    ShopTable(
        '''"Weird ""Schema"."Weird ""Name"''',
        """create table "Weird ""Schema"."Weird ""Name" (
               "select" int primary key, "Ünï, cöde" text, "UPPER" int, " " text, "a""b" text, "it's %s $1 {}" int)""",
        """insert into "Weird ""Schema"."Weird ""Name"
           select n, 'ü' || n, n, ' ', E'\\\\N\\t\\n\\\\' || n, n from generate_series(1, 100) n""",
    ),
    ShopTable(
        "public.select",
        """create table public."select" ("from" text primary key, "where" text)""",
        """insert into public."select" select 'key ' || n, E'\\x01' || n from generate_series(1, 100) n""",
    ),
    ShopTable(
        "public.ТАБЛИЦА.x",
        """create table public."ТАБЛИЦА.x" ("Ключ" uuid primary key, "значение" jsonb)""",
        """insert into public."ТАБЛИЦА.x"
           select md5(n::text)::uuid, jsonb_build_object('n', n, 'null', null) from generate_series(1, 100) n""",
    ),
    # What the server computes.
    ShopTable(
        "public.invoices",
        """create table public.invoices (
            id int generated always as identity primary key, net numeric(10, 2), rate public.percentage,
            gross numeric generated always as (net * (1 + rate / 100)) stored, note text)""",
        "insert into public.invoices (net, rate, note) select n, n % 100, 'n' || n from generate_series(1, 300) n",
    ),
    ShopTable(
        "public.collection",
        """create table public.collection (
            id int primary key, mood public.mood, moods public.mood[], share public.percentage, any_number numeric,
            real_number float8, matrix int[][], raw bytea, span interval, during tstzrange, address inet, bits varbit,
            clock timetz, day date, doc json)""",
        """insert into public.collection
           select n, 'so "so"', array['sad', null]::public.mood[], n % 100, (n::numeric ^ 7) / 3, 'NaN',
                  '{{1,2},{3,4}}', '\\x00ff', n * interval '1 day 3 s', tstzrange(now(), null), '10.0.0.1/8', b'101',
                  '12:00+03', 'infinity', '{"a" :  1}'
           from generate_series(1, 200) n""",
    ),
    ShopTable(
        "public.tickets",
        """create table public.tickets (code text not null, holder text, seat int);
           create unique index tickets_code on public.tickets (code);
           alter table public.tickets replica identity using index tickets_code""",
        "insert into public.tickets select 'T' || n, 'holder ' || n, n from generate_series(1, 300) n",
    ),
    ShopTable(
        "public.logbook",
        "create table public.logbook (at timestamptz default clock_timestamp(), line text)",
        "insert into public.logbook (line) select 'line ' || n % 50 from generate_series(1, 500) n",
        insert_only=True,
    ),
    ShopTable(
        "inventory.parts",
        """create table inventory.parts (id int primary key, name text, secret text, weight real)""",
        "insert into inventory.parts select n, 'part ' || n, 'secret', n / 3.0 from generate_series(1, 300) n",
        columns=("id", "name", "weight"),
        destination="elsewhere.Renamed",
    ),
    ShopTable(
        "inventory.stock",
        """create table inventory.stock (id int, region text, amount int, primary key (id, region))""",
        """insert into inventory.stock
           select n, (array['eu', 'us', 'jp'])[1 + n % 3], n from generate_series(1, 300) n""",
        where="region in ('eu', 'jp') and id > 3",
    ),
)


def create_shop(source: Database, rows: int) -> None:
    """All tables, with `rows` in the large one."""
    with source.connect() as connection:
        connection.execute(_TYPES)
        for table in SHOP:
            _execute(connection, table.create)
            if table.fill:
                _execute(connection, table.fill.replace("{rows}", str(rows)))
        connection.execute("analyze")


def _execute(connection: psycopg.Connection, statement: str) -> None:
    connection.execute(statement.encode())


def pipeline_text(**settings: str) -> str:
    """The pipeline file; `settings` are further lines of a section, such as copy="table_workers = 1"."""
    patterns = ["public.*", "inventory.*", '"Weird ""Schema".*']
    lines = [f'id = "{SHOP_ID}"', f"tables = [{', '.join(map(_literal, patterns))}]"]
    for table in SHOP:
        lines += [] if table.is_plain else _declaration(table)
    lines += ["[source]", 'uri = "env:PGETL_SOURCE_URI"', settings.get("source", "")]
    lines += ["[state]", 'uri = "env:PGETL_STATE_URI"']
    lines += ["[destination]", 'type = "postgres"', 'uri = "env:PGETL_DESTINATION_URI"']
    for section in ("spark", "copy", "stream"):
        lines += [f"[{section}]", settings.get(section, "")]
    return "\n".join(lines) + "\n"


def _declaration(table: ShopTable) -> list[str]:
    lines = ["[[table]]", f"name = {_literal(written(table.table))}"]
    if table.columns:
        lines.append(f"columns = [{', '.join(map(_literal, table.columns))}]")
    if table.where:
        lines.append(f'where = "{table.where}"')
    if table.insert_only:
        lines.append("insert_only = true")
    if table.destination:
        lines.append(f"destination = {_literal(table.destination)}")
    return lines


def _literal(text: str) -> str:
    return f"'{text}'"


# -- the small shop ----------------------------------------------------------------------------------------------------

_ORDERS = ShopTable("public.orders", "create table public.orders (id int primary key, what text)")
_NOTES = ShopTable("public.notes", "create table public.notes (line text, n int)")
_QUIET = tuple(
    ShopTable(f"public.quiet_{n}", f"create table public.quiet_{n} (id int primary key, what text)") for n in range(4)
)
SMALL_SHOP = (_ORDERS, _NOTES, *_QUIET)

_FILE = """
id = "matrix"
tables = ["public.*"]
[source]
uri = "env:PGETL_SOURCE_URI"
{source}
[state]
uri = "env:PGETL_STATE_URI"
[destination]
type = "postgres"
uri = "env:PGETL_DESTINATION_URI"
[copy]
range_bytes = "16KiB"
group_bytes = "{group}"
table_workers = {workers}
"""


def small_file(group: str = "1MiB", workers: int = 2, source: str = "") -> str:
    """The pipeline file; `source` are further lines of its section."""
    return _FILE.format(group=group, workers=workers, source=source)


def create_small_shop(source: Database) -> None:
    with source.connect() as session:
        for table in SMALL_SHOP:
            session.execute(table.create.encode())
        session.execute("alter table public.notes replica identity full")
        session.execute("insert into public.orders select n, 'old ' || n from generate_series(1, 2000) n")
        session.execute("insert into public.notes select 'line', n % 5 from generate_series(1, 300) n")
        for quiet in _QUIET:
            session.execute(f"insert into {quiet.table.sql} values (1, 'never changed')".encode())
