"""Whole pipelines with rules, between real servers and into a lake: what arrives is what a plain implementation of the
transformers makes of the source, whether a row was copied or streamed, and nothing else is anywhere."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgetl.engine.config.spec import TableSpec, TransformationSpec, TransformSpec
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import Errored
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases, Server
from tests.engine.destinations.delta.reading import rows_of
from tests.engine.transform import reference
from tests.in_process import InProcess

pytestmark = pytest.mark.servers

SETTINGS = TransformationSpec(key="env:TRANSFORM_KEY")
PEOPLE, ACCOUNTS, VISITS = (f"public.{name}" for name in ("people", "accounts", "visits"))
TABLES = tuple(TableSpec(name) for name in (PEOPLE, ACCOUNTS, VISITS))
RULES = (
    TransformSpec("id", "integer", PEOPLE),
    TransformSpec("email", "email", PEOPLE),
    TransformSpec("name", "mask", PEOPLE),
    TransformSpec("bio", "hash", PEOPLE),
    TransformSpec("city", "constant", PEOPLE, {"value": "somewhere"}),
    TransformSpec("number", "hash", ACCOUNTS, {"length": 40}),
    TransformSpec("who", "hash", VISITS),
)
SCHEMA = """
    create table people (id bigint primary key, email text unique, name varchar(20), bio text, city text, note text);
    alter table people alter bio set storage external;
    create table accounts (number text primary key, amount int);
    create table visits (who text, at int);
    alter table visits replica identity full
"""
EXPECTED: dict[str, Callable[..., tuple[Any, ...]]] = {
    "people": lambda id_, email, name, bio, city, note: (
        reference.integer(id_),
        reference.email(email),
        reference.masked(name),
        reference.hashed(bio),
        "somewhere" if city != "kept null" else None,
        note,
    ),
    "accounts": lambda number, amount: (reference.hashed(number, 40), amount),
    "visits": lambda who, at: (reference.hashed(who), at),
}


@pytest.fixture
def source_server(server16: Server) -> Server:
    return server16


@pytest.fixture(params=["postgres", "delta"])
def pipeline(
    request: pytest.FixtureRequest, databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[InProcess]:
    made = InProcess(databases, request.param, tmp_path, TABLES, rules=RULES, transformation=SETTINGS)
    for name, value in {**made.environment, "TRANSFORM_KEY": reference.SECRET}.items():
        monkeypatch.setenv(name, value)
    databases.source.execute(SCHEMA)
    return made


def arrived(pipeline: InProcess, table: str) -> Counter[tuple[Any, ...]]:
    if pipeline.kind == "delta":
        return Counter(rows_of(pipeline.folder / "lake" / "public" / table))
    return Counter(map(tuple, pipeline.databases.destination.execute(f"select * from public.{table}")))


def assert_transformed(pipeline: InProcess) -> None:
    for table, expected in EXPECTED.items():
        rows = pipeline.databases.source.execute(f"select * from public.{table}")
        assert arrived(pipeline, table) == Counter(expected(*row) for row in rows), table


def state(pipeline: InProcess, table: str) -> Any:
    with pipeline.opened() as opened:
        return opened.states()[TableName("public", table)]


def run(pipeline: InProcess) -> Any:
    with pipeline.opened() as opened:
        return opened.run(until_caught_up=True, stop=threading.Event())


# -- any changes ------------------------------------------------------------------------------------------------------


def change(dice: random.Random) -> str:
    """Changes of keys, of old rows without a key, of rows whose large value is not sent again."""
    one, other = dice.randrange(40), dice.randrange(40)
    text = f"'value {dice.randrange(1000)}'"
    return dice.choice(
        [
            (
                f"insert into people values ({one}, 'p{dice.random()}@x.org', {text}, repeat({text}, 2000), 'x', null)"
                " on conflict do nothing"
            ),
            f"update people set note = {text} where id = {one}",
            f"update people set name = {text}, city = null where id between {one} and {one} + 5",
            (
                f"update people set id = {other} - 20 where id = {one} and not exists"
                f" (select from people where id = {other} - 20)"
            ),
            f"update people set bio = {text}, email = null where id = {one}",
            f"delete from people where id = {one}",
            f"insert into accounts values ('a{one}', {other}) on conflict (number) do update set amount = {other}",
            (
                f"update accounts set number = 'a{other}', amount = 0 where number = 'a{one}' and not exists"
                f" (select from accounts where number = 'a{other}')"
            ),
            f"delete from accounts where number = 'a{one}'",
            f"insert into visits select {text}, n from generate_series(1, 3) n",
            f"update visits set who = {text} where ctid = (select ctid from visits offset {one} limit 1)",
            f"delete from visits where ctid = (select ctid from visits offset {one} limit 1)",
            "truncate accounts" if dice.random() < 0.1 else "select",
        ]
    )


def load(pipeline: InProcess, dice: random.Random, transactions: int) -> None:
    for _ in range(transactions):
        pipeline.source("; ".join(change(dice) for _ in range(dice.randrange(1, 6))))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_copied_and_streamed_rows_are_what_the_reference_makes_of_them(pipeline: InProcess, seed: int) -> None:
    dice = random.Random(seed)
    load(pipeline, dice, 120)
    pipeline.catch_up()
    assert_transformed(pipeline)
    for _ in range(3):
        load(pipeline, dice, 80)
        pipeline.catch_up()
        assert_transformed(pipeline)


# -- rules that change, columns that are added ------------------------------------------------------------------------


def test_a_changed_rule_or_key_copies_the_tables_concerned_anew(
    pipeline: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(pipeline, random.Random(7), 60)
    pipeline.catch_up()
    generations = {table: state(pipeline, table).generation for table in EXPECTED}

    pipeline.rules = tuple(
        TransformSpec("name", "constant", PEOPLE, {"value": "x"}) if rule.column == "name" else rule for rule in RULES
    )
    pipeline.catch_up()
    assert {row[2] for row in arrived(pipeline, "people")} <= {"x"}
    changed = {table for table in EXPECTED if state(pipeline, table).generation != generations[table]}
    assert changed == {"people"}

    monkeypatch.setenv("TRANSFORM_KEY", "another key, which is long enough")
    before = arrived(pipeline, "accounts")
    pipeline.catch_up()
    assert not before & arrived(pipeline, "accounts")
    pipeline.catch_up()
    assert {table: state(pipeline, table).generation - generations[table] for table in EXPECTED} == {
        "people": 2,
        "accounts": 1,
        "visits": 1,
    }


def test_a_worker_does_not_go_on_under_other_rules(pipeline: InProcess) -> None:
    """It is started without a `prepare`, as Airflow does between two runs."""
    pipeline.source("insert into accounts values ('canary', 1)")
    pipeline.catch_up()
    before = arrived(pipeline, "accounts")
    pipeline.rules, rules = (), pipeline.rules
    pipeline.source("insert into accounts values ('canary 2', 1)")
    with pipeline.opened() as opened:
        opened.stream(until_caught_up=True, stop=threading.Event())
    phase = state(pipeline, "accounts").phase
    assert isinstance(phase, Errored)
    assert "are others than when it was copied" in phase.reason
    assert arrived(pipeline, "accounts") == before
    pipeline.rules = rules


def test_a_column_that_is_added_has_its_rule_at_once(pipeline: InProcess) -> None:
    pipeline.rules = (*RULES, TransformSpec("secret*", "hash", PEOPLE))
    pipeline.source("insert into people values (1, 'a', 'b', 'c', 'd', 'e')")
    pipeline.catch_up()
    pipeline.source(
        "alter table people add secret text default 'canary', add secret_too text",
        "insert into people values (2, 'a2', 'b', 'c', 'd', 'e', 'x', 'y')",
        "update people set note = 'f' where id = 1",
    )
    pipeline.catch_up()
    rows = {row[5]: row[6:] for row in arrived(pipeline, "people")}
    assert rows == {
        "f": (reference.hashed("canary"), None),
        "e": (reference.hashed("x"), reference.hashed("y")),
    }
    assert state(pipeline, "people").generation == 1


def test_strict_mode_stops_a_table_to_which_a_column_is_added(pipeline: InProcess) -> None:
    kept = [TransformSpec(column, "keep") for column in ("note", "amount", "at")]
    pipeline.rules, pipeline.transformation = (*RULES, *kept), replace(SETTINGS, mode="strict")
    pipeline.source("insert into people values (1, 'a', 'b', 'c', 'd', 'e')", "insert into accounts values ('x', 1)")
    pipeline.catch_up()
    before = arrived(pipeline, "people")
    pipeline.source(
        "alter table people add secret text default 'canary'",
        "insert into people values (2, 'a2', 'b', 'c', 'd', 'e', 'canary')",
        "insert into accounts values ('y', 1)",
    )
    outcome = run(pipeline)
    (phase,) = outcome.errored.values()
    assert "Column secret of public.people has no rule" in phase.reason
    assert arrived(pipeline, "people") == before
    assert len(arrived(pipeline, "accounts")) == 2  # the others go on

    with pipeline.opened() as opened:
        (finding,) = [one for one in opened.check() if one.table == PEOPLE]
    assert (finding.severity, finding.kind) == ("warning", ErrorKind.TRANSFORM)

    pipeline.rules = (*pipeline.rules, TransformSpec("secret", "mask"))
    pipeline.catch_up()
    assert Counter(row[6] for row in arrived(pipeline, "people")) == {"******": 2}


def test_a_column_that_is_renamed_does_not_lose_its_rule(pipeline: InProcess) -> None:
    pipeline.source("insert into people values (1, 'a', 'b', 'c', 'd', 'e')")
    pipeline.catch_up()
    before = arrived(pipeline, "people")
    pipeline.source("alter table people rename email to mail", "update people set mail = 'canary'")
    outcome = run(pipeline)
    (phase,) = outcome.errored.values()
    assert "email of public.people was renamed to mail, for which there is not the same rule" in phase.reason
    assert arrived(pipeline, "people") == before


# -- security labels --------------------------------------------------------------------------------------------------


def label(pipeline: InProcess, table: str, column: str, text: str) -> None:
    """As the extension would, which need not be there."""
    pipeline.source(
        f"""
        set allow_system_table_mods = on;
        delete from pg_seclabel where objoid = '{table}'::regclass
            and objsubid = (select attnum from pg_attribute where attrelid = objoid and attname = '{column}');
        insert into pg_seclabel select attrelid, 'pg_class'::regclass, attnum, 'anon', $label${text}$label$
        from pg_attribute where attrelid = '{table}'::regclass and attname = '{column}'
        """
    )


def test_security_labels_are_rules(pipeline: InProcess) -> None:
    pipeline.rules = tuple(one for one in RULES if one.column not in ("email", "bio"))
    pipeline.transformation = replace(SETTINGS, infer_from_security_labels=True)
    for column, text in (("email", "FUNCTION anon.fake_email()"), ("bio", "VALUE 'x'"), ("name", "FUNCTION my.own()")):
        label(pipeline, "people", column, f"MASKED WITH {text}")
    pipeline.source("insert into people values (1, 'a', 'b', 'c', 'd', 'e')")
    pipeline.catch_up()
    pipeline.source("insert into people values (2, 'a2', 'b', 'c', 'd', 'e')")
    pipeline.catch_up()
    assert {row[1:4] for row in arrived(pipeline, "people")} == {
        (reference.email("a"), "*", "x"),
        (reference.email("a2"), "*", "x"),
    }
    label(pipeline, "people", "email", "MASKED WITH VALUE NULL")
    pipeline.catch_up()
    assert {row[1] for row in arrived(pipeline, "people")} == {None}
    assert state(pipeline, "people").generation == 2


def test_a_label_without_a_counterpart_is_refused(pipeline: InProcess) -> None:
    pipeline.transformation = replace(SETTINGS, infer_from_security_labels=True)
    label(pipeline, "people", "note", "MASKED WITH FUNCTION my.own()")
    with pipeline.opened() as opened, pytest.raises(PgetlError, match="has no counterpart among the transformers"):
        opened.prepare()


# -- failing closed ---------------------------------------------------------------------------------------------------


class Refusing:
    def transform_value(self, text: str, key: bytes) -> str:
        del key
        if "canary" in text:
            raise ValueError(f"what is {text}?")
        return text


def refusing(pipeline: InProcess, **more: Any) -> None:
    rule = TransformSpec("note", f"{__name__}:Refusing", PEOPLE, **more)
    pipeline.rules = (*RULES, rule)


@pytest.mark.parametrize("path", ["copy", "stream"])
def test_a_value_that_cannot_be_transformed_stops_its_table_and_is_told_to_nobody(
    pipeline: InProcess, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusing(pipeline)
    pipeline.source("insert into people values (1, 'a', 'b', 'c', 'd', 'e')", "insert into accounts values ('x', 1)")
    if path == "stream":
        pipeline.catch_up()
    pipeline.source("insert into people values (2, 'a2', 'b', 'c', 'd', 'canary')", "update accounts set amount = 2")
    outcome = run(pipeline)
    (phase,) = outcome.errored.values()
    assert "Column note of public.people could not be transformed" in phase.reason
    assert "ValueError at test_pipelines.py, line" in phase.reason
    assert "canary" not in phase.reason + (phase.solution or "") + caplog.text
    assert [row[1] for row in arrived(pipeline, "accounts")] == [2]

    pipeline.source("update people set note = 'well' where id = 2")
    with pipeline.opened() as opened:
        opened.reset(TableName("public", "people"))
    pipeline.catch_up()
    assert sorted(row[5] for row in arrived(pipeline, "people")) == ["e", "well"]


def test_null_is_written_where_that_is_said(pipeline: InProcess) -> None:
    refusing(pipeline, on_error="null")
    pipeline.source("insert into people values (1, 'a', 'b', 'c', 'd', 'canary')")
    pipeline.catch_up()
    pipeline.source("insert into people values (2, 'a2', 'b', 'c', 'd', 'canary'), (3, 'a3', 'b', 'c', 'd', 'fine')")
    pipeline.catch_up()
    assert Counter(row[5] for row in arrived(pipeline, "people")) == {None: 2, "fine": 1}


# -- check, preview, verify -------------------------------------------------------------------------------------------


def test_check_says_what_does_not_fit(pipeline: InProcess) -> None:
    pipeline.rules = (
        TransformSpec("emial", "email", PEOPLE),
        TransformSpec("email", "mask", PEOPLE),
        TransformSpec("number", "mask", ACCOUNTS),
        TransformSpec("at", "hash", VISITS),
    )
    with pipeline.opened() as opened:
        found = {(one.table, one.problem) for one in opened.check() if one.kind is ErrorKind.CONFIG}
        with pytest.raises(PgetlError):
            opened.prepare()
    assert found == {
        (PEOPLE, 'The rule "email" for emial of public.people covers no column; did you mean "email"?'),
        (
            PEOPLE,
            (
                '"mask" does not keep the values of email distinct, which the unique index people_email_key of '
                "public.people has them be."
            ),
        ),
        (
            ACCOUNTS,
            (
                'Column number of public.accounts cannot be transformed by "mask": rows are identified by it, and its '
                "values would not stay distinct."
            ),
        ),
        (
            VISITS,
            (
                'Column at of public.visits cannot be transformed by "hash": "hash" is for columns of type bytes or '
                "text, and it is integer."
            ),
        ),
    }


def test_check_warns_of_references_that_come_apart(pipeline: InProcess) -> None:
    pipeline.source("alter table accounts add owner bigint references people")
    with pipeline.opened() as opened:
        (finding,) = [one for one in opened.check() if "cannot be joined" in one.problem]
    assert finding.severity == "warning"
    assert "owner of public.accounts references id of public.people" in finding.problem
    pipeline.rules = (*RULES, TransformSpec("owner", "integer", ACCOUNTS))
    with pipeline.opened() as opened:
        assert not [one for one in opened.check() if "cannot be joined" in one.problem]


def test_uniqueness_may_be_given_up_on_purpose(pipeline: InProcess) -> None:
    rule = TransformSpec("email", "mask", PEOPLE, allow_uniqueness_loss=True)
    pipeline.rules = (rule, *(one for one in RULES if one.column != "email"))
    pipeline.source("insert into people (id, email) values (1, 'a@x'), (2, 'b@x')")
    pipeline.catch_up()
    assert [row[1] for row in arrived(pipeline, "people").elements()] == ["***", "***"]


def test_a_preview_shows_rows_before_and_after_and_writes_nothing(pipeline: InProcess) -> None:
    pipeline.source("insert into people values (1, 'a@b', 'Ada', null, 'x', 'kept')")
    with pipeline.opened() as opened:
        found = {one.table.name: one for one in opened.preview_transforms()}
    people = {column.name: column for column in found["people"].columns}
    assert found["people"].failure is None
    assert (people["email"].before, people["email"].after) == (["a@b"], [reference.email("a@b")])
    assert (people["bio"].use, people["bio"].after) == ("hash", [None])
    assert (people["note"].use, people["note"].after) == (None, ["kept"])
    assert found["accounts"].rows == 0
    assert "a@b" not in repr(found)
    assert not pipeline.slots()


def test_verify_compares_what_is_to_be_there(pipeline: InProcess) -> None:
    load(pipeline, random.Random(11), 80)
    pipeline.catch_up()
    load(pipeline, random.Random(12), 40)
    pipeline.catch_up()
    with pipeline.opened() as opened:
        found = opened.verify()
    assert found.is_proven, [one.in_words() for one in found.tables]
    if pipeline.kind == "postgres":
        pipeline.databases.destination.execute("update accounts set amount = -1")
        with pipeline.opened() as opened:
            found = opened.verify([TableName("public", "accounts")])
        (table,) = found.different
        assert "value" not in str(table.as_json())
