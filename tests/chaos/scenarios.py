"""Tables that each are one scenario of other systems' tests: how it is made and filled, and what happens to it while it
is followed. Which scenario of whom each stands for is told in docs/subscription-tests.md."""

from __future__ import annotations

from dataclasses import dataclass

from tests.shop import ShopTable


@dataclass(frozen=True)
class Scenario:
    """`create` makes and fills `public.<name>`; `changes` is sent at once when it is followed. `since`: the first major
    version of the source that knows what is used."""

    name: str
    create: str
    changes: str
    since: int = 14

    @property
    def table(self) -> ShopTable:
        return ShopTable(f"public.{self.name}", self.create)


_ARRAYS = """(id int primary key, n int, t text[], c varchar(9)[], p character(5)[], d date[], b bytea[], i integer[],
    l bigint[], j json[], u uuid[], s timestamptz[]);
insert into {t} select id, 0, array_fill('text'::text, array[900]), array_fill('v'::varchar, array[900]),
    array_fill('p'::character(5), array[900]), array_fill(date '2024-02-29', array[900]),
    array_fill('\\x00ff'::bytea, array[900]), array_fill(id, array[900]), array_fill(id::bigint, array[900]),
    array_fill('[null]'::json, array[900]), array_fill(md5('u')::uuid, array[900]),
    array_fill(timestamptz '1500-01-01 00:00:00.000001 UTC', array[900])
from generate_series(1, 3) id;"""
_TOASTED = """update {t} set n = n + 1; update {t} set id = id + 10 where id = 2;
update {t} set t = t || array['more'] where id = 3; update {t} set n = n + 1, i = null where id = 1;"""


def _large(column: str) -> str:
    return f"repeat(md5({column}::text), 40)"


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "included",
        "create table included (a int, b int, primary key (a) include (b)); insert into included values (1, 1), (2, 2)",
        "insert into included select n, n from generate_series(3, 50) n; delete from included where a > 20; "
        "update included set a = -a, b = b + 1",
    ),
    Scenario(
        "equal_rows",
        "create table equal_rows (x text); alter table equal_rows replica identity full; "
        "insert into equal_rows values ('a'), ('b'), ('b'), (null), (null)",
        "update equal_rows set x = 'bb' where x = 'b'; insert into equal_rows values ('b'), (null); "
        "delete from equal_rows where ctid = (select min(ctid) from equal_rows where x is null)",
    ),
    Scenario(
        "full_with_key",
        "create table full_with_key (a int primary key, b text); alter table full_with_key replica identity full; "
        "insert into full_with_key values (1, 'foo'), (2, 'baz')",
        "update full_with_key set b = 'bar' where a = 1; update full_with_key set a = 3 where a = 2",
    ),
    Scenario(
        "dropped_columns",
        "create table dropped_columns (a int, gone text, b text, gone_too int); "
        "alter table dropped_columns replica identity full; insert into dropped_columns values (1, 'x', 'y', 1); "
        "alter table dropped_columns drop gone, drop gone_too; insert into dropped_columns values (2, 'z')",
        "update dropped_columns set b = b || '!'; delete from dropped_columns where a = 1",
    ),
    Scenario(
        "missing_attributes",
        "create table missing_attributes (a int); insert into missing_attributes values (1); "
        "alter table missing_attributes add b bool default false, add c text default 'fast'; "
        "insert into missing_attributes values (2, true, null); alter table missing_attributes replica identity full",
        "update missing_attributes set a = a + 1",
    ),
    Scenario(
        "partial_index",
        "create function twice(int) returns int immutable language sql as 'select $1 * 2'; "
        "create table partial_index (a int primary key, b int); "
        "create index on partial_index (b) where a > twice(1); create index on partial_index (twice(b)); "
        "insert into partial_index select n, n from generate_series(1, 20) n",
        "update partial_index set b = b + 1; delete from partial_index where a % 3 = 0",
    ),
    Scenario("arrays", "create table arrays " + _ARRAYS.format(t="arrays"), _TOASTED.format(t="arrays")),
    Scenario(
        "arrays_full",
        "create table arrays_full " + _ARRAYS.format(t="arrays_full") + "alter table arrays_full replica identity full",
        _TOASTED.format(t="arrays_full"),
    ),
    Scenario(
        "temporal",
        "create table temporal (id int4range, valid_at daterange, a text, "
        "primary key (id, valid_at without overlaps)); insert into temporal values "
        "('[1,2)', '[2000-01-01,2010-01-01)', 'a'), ('[2,3)', '[2000-01-01,)', 'b'), ('[3,4)', '(,)', 'c')",
        "update temporal set a = 'x' where id = '[1,2)'; "
        "update temporal set valid_at = '[2001-01-01,)' where id = '[2,3)'; "
        "delete from temporal where id = '[3,4)'; insert into temporal values ('[1,2)', '[2010-01-01,)', 'later')",
        since=18,
    ),
    Scenario(
        "of_another_origin",
        "create table of_another_origin (a int primary key)",
        "select pg_replication_origin_create('elsewhere'); select pg_replication_origin_session_setup('elsewhere'); "
        "begin; select pg_replication_origin_xact_setup('0/12345', now()); insert into of_another_origin values (1); "
        "commit; select pg_replication_origin_session_reset(); insert into of_another_origin values (2); "
        "select pg_replication_origin_drop('elsewhere')",
    ),
    Scenario(
        "with_messages",
        "create table with_messages (a int primary key)",
        "select pg_logical_emit_message(true, 'p', 'alone'); select pg_logical_emit_message(false, 'p', 'at once'); "
        "begin; select pg_logical_emit_message(true, 'p', 'x'); insert into with_messages values (1); "
        "select pg_logical_emit_message(false, 'p', 'y'); commit; "
        "begin; select pg_logical_emit_message(false, 'p', 'z'); insert into with_messages values (2); rollback",
    ),
    Scenario(
        "altered_and_taken_back",
        "create table altered_and_taken_back (a int primary key, b text)",
        "begin; insert into altered_and_taken_back values (1, 'one'); savepoint s; "
        "alter table altered_and_taken_back add c int; insert into altered_and_taken_back values (2, 'two', 2); "
        "rollback to s; insert into altered_and_taken_back values (3, 'three'); commit; "
        "begin; alter table altered_and_taken_back drop b; insert into altered_and_taken_back values (4); rollback; "
        "insert into altered_and_taken_back values (5, 'five')",
    ),
    Scenario(
        "subtransactions",
        "create table subtransactions (a int primary key, b text); insert into subtransactions values (0, 'zero')",
        f"begin; insert into subtransactions select n, {_large('n')} from generate_series(1, 400) n; savepoint s1; "
        "update subtransactions set b = 'lost'; savepoint s2; delete from subtransactions where a > 9; rollback to s1; "
        f"insert into subtransactions select n, {_large('n')} from generate_series(401, 600) n; savepoint s3; "
        "update subtransactions set a = -a where a % 2 = 0; release s3; commit; "
        f"begin; insert into subtransactions select n, {_large('n')} from generate_series(1000, 1400) n; rollback",
    ),
    Scenario(
        "truncated_with_others",
        "create table truncated_with_others (a int generated always as identity primary key, b text); "
        "create table points_to_it (a int primary key, b int references truncated_with_others on delete cascade); "
        "insert into truncated_with_others (b) values ('one'), ('two'); insert into points_to_it values (1, 1)",
        "truncate truncated_with_others restart identity cascade; "
        "insert into truncated_with_others (b) values ('again'); insert into points_to_it values (2, 1); "
        "begin; truncate points_to_it, truncated_with_others; rollback",
    ),
    Scenario("points_to_it", "", ""),
    Scenario(
        "under_a_view",
        "create table under_a_view (a int primary key); insert into under_a_view values (1); "
        "create materialized view seen as select * from under_a_view; create unique index on seen (a); "
        "create unlogged table unlogged_one (a int); create view looked_at as select * from under_a_view",
        "insert into under_a_view values (2); refresh materialized view seen; insert into unlogged_one values (1); "
        "update unlogged_one set a = 2; create temporary table short_lived (a int); "
        "insert into short_lived values (1); update short_lived set a = 2; update looked_at set a = a + 10; "
        "delete from unlogged_one",
    ),
    Scenario(
        "parted",
        "create table parted (a int, b text, c numeric, primary key (a)) partition by range (a); "
        "create table parted_old (gone int, c numeric, b text, a int not null); alter table parted_old drop gone; "
        "alter table parted attach partition parted_old for values from (0) to (100); "
        "create table parted_new partition of parted for values from (100) to (300) partition by list (a); "
        "create table parted_new_rest partition of parted_new default; "
        "insert into parted select n, 'row ' || n, n / 7.0 from generate_series(1, 250) n",
        "insert into parted_old (a, b) values (0, 'into the leaf'); "
        "update parted set a = 299 where a = 7; update parted set a = 7 where a = 200; "
        "delete from parted_new where a % 2 = 0; update parted set b = null, c = c * 2 where a < 20",
    ),
    Scenario(
        "of_a_checked_domain",
        "create function is_small(int) returns bool immutable language sql as 'select $1 < 1000'; "
        "create domain small as int check (is_small(value)); create domain smaller as small check (value < 500); "
        "create table of_a_checked_domain (a small primary key, b smaller, c smaller[])",
        "insert into of_a_checked_domain values (1, 2, '{3,null}'), (11, null, '{}'); "
        "update of_a_checked_domain set b = 499, a = a + 1",
    ),
    Scenario(
        "times",
        "create table times (id int primary key, a time[], b timetz[], c timetz, d timestamp, e timestamptz, f date, "
        "g interval); insert into times values (1, '{24:00:00}', '{24:00:00+01,00:00:00-15:59}', '24:00:00-08', "
        "'0001-01-01 00:00:00.000001 BC', '1500-02-28 23:59:59.999999 UTC', '4713-11-24 BC', '-178000000 years')",
        "insert into times select 2, a, b, c, timestamp '294276-12-31 23:59:59.999999', 'infinity', '5874897-12-31', "
        "'P1Y2M3DT4H5M6.7S' from times; update times set g = -g, f = '-infinity' where id = 1",
    ),
    Scenario(
        "numbers",
        "create table numbers (id int primary key, a numeric(3,-2), b numeric(3,5), c numeric(1000,999), d money, "
        "e real); "
        "insert into numbers values (1, 12345, 0.00999, 1.5, '-92233720368547758.08', '-0')",
        "insert into numbers values (2, -99900, -0.00001, 'NaN', '92233720368547758.07', 1e-45), "
        "(3, 49, 0, -9.999, null, 'NaN'); update numbers set e = -e, c = null where id = 1",
        since=15,
    ),
    Scenario(
        "odd_names",
        'create table odd_names ("""quoted""" int primary key, "back\\slash" text, "dot.ted" int, "Two  blanks" int, '
        '"%s" int, "select" int); insert into odd_names values (1, \'a\', 1, 1, 1, 1)',
        'insert into odd_names values (2); update odd_names set "back\\slash" = \'b\\\\\', "select" = 0, "%s" = null',
    ),
    Scenario(
        "deferred",
        "create table deferred (id int primary key, place int unique deferrable initially deferred, v text); "
        "insert into deferred select n, n, 'v' from generate_series(1, 9) n",
        "begin; update deferred set place = place + 1; update deferred set place = 1 where place = 10; commit; "
        "update deferred set id = id + 100 where id in (1, 2)",
    ),
    Scenario(
        "within_one_transaction",
        "create table within_one_transaction (a int primary key, b text)",
        "begin; insert into within_one_transaction values (1, 'a'); delete from within_one_transaction; "
        "insert into within_one_transaction values (1, 'b'); update within_one_transaction set a = 2; "
        "insert into within_one_transaction values (1, 'c'); truncate within_one_transaction; "
        "insert into within_one_transaction values (1, 'd'), (2, 'e'); "
        "with gone as (delete from within_one_transaction where a = 1 returning *) "
        "insert into within_one_transaction select 3, b from gone; commit; "
        "merge into within_one_transaction t using (values (2, 'm'), (4, 'n')) s (a, b) on t.a = s.a "
        "when matched then update set b = s.b when not matched then insert values (s.a, s.b)",
        since=15,
    ),
    Scenario(
        "computed",
        "create table computed (a int primary key, b int generated always as (a * 2) stored, c text default 'd', "
        "e serial, f int generated by default as identity); insert into computed (a) values (1)",
        "insert into computed (a) values (2); update computed set a = a + 10",
    ),
    Scenario(
        "triggered",
        "create function shout() returns trigger language plpgsql as 'begin new.b := upper(new.b); return new; end'; "
        "create table triggered (a int primary key, b text); "
        "create trigger shout before insert or update on triggered for each row execute function shout()",
        "insert into triggered values (1, 'quiet'); update triggered set b = b || ' again'",
    ),
)
