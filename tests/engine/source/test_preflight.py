"""The look before any work: a source that fits, and each thing that may be amiss, with its remedy."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_provider_pgetl.engine.config.spec import CopySpec, DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.model.errors import Finding, PgetlError, Severity
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.source import matching as matching_module
from airflow_provider_pgetl.engine.source.connecting import Connection, connect
from airflow_provider_pgetl.engine.source.matching import match
from airflow_provider_pgetl.engine.source.preflight import check, judge_server, judge_unused
from airflow_provider_pgetl.engine.source.relations import read_relations
from airflow_provider_pgetl.engine.source.server import ServerFacts, read_server
from airflow_provider_pgetl.engine.source.slots import Slot, SlotName
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server

GOOD = ServerFacts(
    version=180004,
    used_slots=2,
    role="etl",
    may_replicate=True,
    standby=False,
    wal_level="logical",
    max_slots=10,
    max_walsenders=10,
    used_walsenders=1,
    slot_wal_megabytes=100_000,
    slot_idle_seconds=0,
    synchronized_standby_slots="",
    hot_standby_feedback=False,
    synchronous_standby_names="",
    standbys_missing=0,
    unknown_standby_slots=None,
    slots_are_synchronised=True,
)


def spec(*tables: str | TableSpec, **source: bool | str) -> PipelineSpec:
    return PipelineSpec(
        "shop",
        tuple(TableSpec(one) if isinstance(one, str) else one for one in tables or ("public.t",)),
        SourceSpec("env:SOURCE", **source),  # type: ignore[arg-type] # whichever setting a test is about
        DestinationSpec("memory"),
    )


def problems(findings: list[Finding], *severities: Severity) -> list[str]:
    return [one.problem for one in findings if one.severity in (severities or ("error",))]


# -- the server -------------------------------------------------------------------------------------------------------


def test_a_good_server_is_worth_a_note_at_most() -> None:
    assert {one.severity for one in judge_server(GOOD, spec())} == {"note"}


@pytest.mark.parametrize(
    ("change", "severity", "problem", "remedy"),
    [
        ({"version": 130020}, "error", "PostgreSQL 13", "Upgrade"),
        ({"version": 140017}, "warning", "PostgreSQL 14.17 can lose changes", "14.18"),
        ({"version": 150012}, "warning", "PostgreSQL 15.12 can lose changes", "15.13"),
        ({"version": 160008}, "warning", "PostgreSQL 16.8 can lose changes", "16.9"),
        ({"version": 170004}, "warning", "PostgreSQL 17.4 can lose changes", "17.5"),
        ({"wal_level": "replica"}, "error", "wal_level = replica", "ALTER SYSTEM SET wal_level"),
        ({"may_replicate": False}, "error", "etl may not replicate", 'ALTER ROLE "etl" REPLICATION'),
        ({"used_slots": 9}, "error", "max_replication_slots is 10, of which others use 9", "to 12 or more"),
        ({"used_slots": 8}, "warning", "this pipeline uses up to 3", "lower copy.table_workers"),
        ({"used_walsenders": 10}, "error", "max_wal_senders is 10", "to 13 or more"),
        ({"slot_wal_megabytes": -1}, "note", "max_slot_wal_keep_size is unlimited", "disk"),
        ({"standbys_missing": 1}, "error", "Commits in the source wait", "synchronous_standby_names"),
        ({"synchronous_standby_names": "ANY 1 (*)"}, "error", "this pipeline's stream, too", "Name the standbys"),
        ({"unknown_standby_slots": "s1"}, "warning", "wait for the slot s1, which no standby uses", "Connect"),
        ({"slot_idle_seconds": 60}, "warning", "idle_replication_slot_timeout is 60 s", "0"),
    ],
)
def test_what_is_amiss_with_a_server(change: dict[str, int], severity: Severity, problem: str, remedy: str) -> None:
    (finding,) = [one for one in judge_server(replace(GOOD, **change), spec()) if problem in one.problem]
    assert finding.severity == severity
    assert remedy in finding.remedy


@pytest.mark.parametrize("version", [140018, 150013, 160009, 170005, 180000])
def test_minors_that_are_safe(version: int) -> None:
    assert problems(list(judge_server(replace(GOOD, version=version), spec())), "warning", "error") == []


def test_more_copies_at_once_need_more_slots() -> None:
    many = replace(spec(), copy=CopySpec(table_workers=8))
    assert any("uses up to 9" in one.problem for one in judge_server(GOOD, many))


def test_failover() -> None:
    wanted = spec(failover=True)
    assert problems(list(judge_server(replace(GOOD, version=160014), wanted)))[0].startswith("`failover = true` needs")
    assert "synchronized_standby_slots" in problems(list(judge_server(GOOD, wanted)), "warning")[0]
    complete = replace(GOOD, synchronized_standby_slots="s1")
    assert problems(list(judge_server(complete, wanted)), "warning") == []
    alone = replace(complete, slots_are_synchronised=False)
    assert "no standby that synchronises slots" in problems(list(judge_server(alone, wanted)), "warning")[0]


def test_a_standby() -> None:
    standby = replace(GOOD, standby=True)
    assert "from PostgreSQL 16 on" in problems(list(judge_server(replace(standby, version=150018), spec())))[0]
    publication, state = problems(list(judge_server(standby, spec())))
    assert "no publication can be made" in publication
    assert "no state can be stored" in state
    fitting = replace(spec(manage_publication=False), state_uri="env:STATE")
    assert problems(list(judge_server(standby, fitting))) == []
    assert "hot_standby_feedback" in problems(list(judge_server(standby, fitting)), "warning")[0]


def unused(restart: Boundary | None) -> Slot:
    return Slot("any", restart, restart, None, "reserved" if restart else "lost", None, failover=False)


def test_slots_of_pipelines_that_this_store_does_not_have_are_told_with_what_they_retain() -> None:
    slots = {
        SlotName("shop", "aaaaaa"): unused(Boundary.parse("0/1000000")),
        SlotName("shop", "bbbbbb"): unused(Boundary.parse("0/1000000")),
        SlotName("sales", "cccccc", 7): unused(None),
    }
    namesake, gone = judge_unused(slots, {"shop": "aaaaaa"}, Boundary.parse("0/1400000"))
    assert namesake.problem == (
        "The slot pgetl_shop_bbbbbb_apply retains 4.0 MiB of WAL; no session uses it, and no pipeline of this state "
        "store has it."
    )
    assert namesake.remedy == (
        "If another state store has pipeline shop (instance bbbbbb), which only stands still, leave it; if that is "
        "gone for good: SELECT pg_drop_replication_slot('pgetl_shop_bbbbbb_apply');"
    )
    assert gone.problem.startswith("The slot pgetl_sales_cccccc_c7 retains no WAL any more;")
    assert {namesake.severity, gone.severity} == {"warning"}


def test_slots_and_walsenders_of_others_are_counted_and_ours_are_not(connection: Connection, source: Database) -> None:
    before = read_server(connection, "shop")
    for name in ("pgetl_shop_x1_apply", "pgetl_shop_x1_c3", "pgetl_shop_eu_x1_apply", "theirs"):
        source.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    after = read_server(connection, "shop")
    assert after.used_slots == before.used_slots + 2
    assert (after.wal_level, after.may_replicate, after.standby) == ("logical", True, False)


# -- real sources -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source_server", [15, 16, 18], indirect=True)
def test_a_source_that_fits(connection: Connection, source: Database) -> None:
    source.execute("create table t (id int primary key, v text)")
    assert problems(check(connection, spec(TableSpec("public.t", where="id > 5"))), "error", "warning") == []
    assert source.execute("select from pg_publication") == []


def test_unknown_tables_are_found_with_everything_else(connection: Connection, source: Database) -> None:
    source.execute("create table orders (id int)")
    found = problems(check(connection, spec("public.orderz", "public.orders", "sales.*")))
    assert [one[:24] for one in found] == [
        "There is no table public",
        "The pattern sales.* matc",
        "public.orders has no usa",
    ]


def test_wal_level_replica_is_told_though_nothing_else_can_be_tried() -> None:
    with Server.start(16, {"wal_level": "replica"}) as server, connect(server.uri(), "pgetl test") as connection:
        connection.execute("create table public.t (id int primary key)")
        assert problems(check(connection, spec())) == ["The source has wal_level = replica, which cannot be decoded."]


class TestAsAStranger:
    @pytest.fixture
    def session(self, stranger: str, source: Database) -> Iterator[Connection]:
        source.execute("create schema hidden; create table hidden.t (id int primary key)")
        source.execute("create table t (id int primary key)")
        with connect(stranger, "pgetl test") as connection:
            yield connection

    def test_every_missing_privilege_is_named(self, session: Connection) -> None:
        role = session.info.user
        found = check(session, spec("public.t", "hidden.t"))
        assert problems(found) == [
            f"The role {role} may not replicate.",
            f"The role {role} may not use the schema hidden of hidden.t.",
            f"The role {role} may not read hidden.t.",
            f"The role {role} may not read public.t.",
            f"The role {role} may not create a publication in the database {session.info.dbname}.",
            "Only the owner of hidden.t may add it to a publication.",
            "Only the owner of public.t may add it to a publication.",
        ]

    def test_doing_what_the_remedies_say_settles_it(self, session: Connection, source: Database) -> None:
        for _ in range(2):
            for finding in check(session, spec("public.t")):
                if finding.severity == "error" and finding.remedy.startswith(("GRANT", "ALTER ROLE")):
                    source.execute(finding.remedy.partition(", or")[0].rstrip("."))
        source.execute(f"alter table t owner to {session.info.user}")
        assert problems(check(session, spec("public.t"))) == []

    def test_a_group_that_owns_the_tables_is_enough(self, session: Connection, source: Database) -> None:
        group = f"owners_{source.name}"
        source.execute(f"create role {group}; alter table t owner to {group}; grant {group} to {session.info.user}")
        source.execute(f"grant create on database {source.name} to {group}")
        try:
            found = problems(check(session, spec("public.t")))
            assert found == [f"The role {session.info.user} may not replicate."]
        finally:
            source.execute(f"drop owned by {group} cascade; drop role {group}")

    def test_row_security(self, session: Connection, source: Database) -> None:
        source.execute(f"alter table t enable row level security; grant select on t to {session.info.user}")
        assert any("Row security hides rows of public.t" in one for one in problems(check(session, spec("public.t"))))

    def test_privileges_on_the_root_do_not_reach_its_leaves(self, session: Connection, source: Database) -> None:
        source.execute(
            """create table events (id int primary key) partition by hash (id);
               create table events_0 partition of events for values with (modulus 1, remainder 0)"""
        )
        source.execute(f"grant select on events to {session.info.user}")
        assert f"The role {session.info.user} may not read public.events_0." in problems(
            check(session, spec("public.events"))
        )


def test_an_unlogged_leaf(connection: Connection, source: Database) -> None:
    source.execute(
        """create table events (id int primary key) partition by hash (id);
           create unlogged table events_0 partition of events for values with (modulus 1, remainder 0)"""
    )
    assert (
        "public.events_0, part of public.events, is unlogged" in problems(check(connection, spec("public.events")))[0]
    )


def test_types_without_binary_form_are_worth_a_note(connection: Connection, source: Database) -> None:
    source.execute("create table t (id int primary key, who aclitem[])")
    assert "who (aclitem[]) of public.t have no binary form and travel as text." in problems(
        check(connection, spec()), "note"
    )


@pytest.mark.parametrize("source_server", [16, 18], indirect=True)
def test_generated_columns_that_are_not_sent_are_worth_a_note(connection: Connection, source: Database) -> None:
    """Stored ones are sent from 18 on, virtual ones never; what a column list leaves out is left out by somebody."""
    source.execute("create table g (id int primary key, s int generated always as (id + 1) stored, n text)")
    with_virtual = connection.info.server_version >= 180000
    if with_virtual:
        source.execute("alter table g add v int generated always as (id + 2) virtual")
    (note,) = [one for one in check(connection, spec("public.g")) if "generates" in one.problem]
    assert (note.severity, note.table) == ("note", "public.g")
    unsent = "v" if with_virtual else "s"
    assert note.problem.startswith(f"public.g is replicated without {unsent}, which the source generates")
    listed = check(connection, spec(TableSpec("public.g", columns=("id", "n"))))
    assert not any("generates" in one.problem for one in listed)


ROOT = "create table p (id int not null, n int not null, v text{}) partition by range (id)"


@pytest.mark.parametrize(
    ("create", "warned"),
    [
        (f"{ROOT.format('')}; alter table p replica identity full", True),
        (f"{ROOT.format(', unique (id)')}; alter table p replica identity using index p_id_key", True),
        (
            f"{ROOT.format(', unique (id), primary key (id, n)')}; alter table p replica identity using index p_id_key",
            True,
        ),
        (f"{ROOT.format(', primary key (id)')}; alter table p replica identity full", False),
        (ROOT.format(", primary key (id)"), False),
        ("create table p (id int, n int); alter table p replica identity full", False),
    ],
)
def test_partitions_to_come_have_the_default_identity(
    connection: Connection, source: Database, create: str, warned: bool
) -> None:
    source.execute(create)
    said = [one for one in problems(check(connection, spec("public.p")), "warning") if "created later" in one]
    assert bool(said) is warned
    inserts = check(connection, spec(TableSpec("public.p", insert_only=True)))
    assert not any("created later" in one for one in problems(inserts, "warning"))


def test_large_values_of_rows_that_enter_a_row_filter(connection: Connection, source: Database) -> None:
    source.execute("create table f (id int primary key, short varchar(20), amount numeric, big text, doc jsonb)")
    declared = spec(TableSpec("public.f", where="id > 3"))
    (said,) = [one for one in problems(check(connection, declared), "note") if "row filter" in one]
    assert "large values of big, doc that" in said
    source.execute("create publication theirs for table f where (id > 3)")
    of = spec("public.f", publication="theirs", manage_publication=False)
    assert said in problems(check(connection, of), "note")
    source.execute("alter table f replica identity full")
    assert not any("row filter" in one for one in problems(check(connection, declared), "note"))


def test_the_state_among_all_tables(connection: Connection, source: Database) -> None:
    source.execute("create table t (id int primary key); create publication everything for all tables")
    of = spec(publication="everything", manage_publication=False)
    assert "the pipeline's own state is among them" in problems(check(connection, of), "warning")[0]
    assert problems(check(connection, replace(of, state_uri="env:STATE")), "warning") == []


def test_a_table_that_is_locked_is_not_waited_for_without_a_word(
    connection: Connection, source: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching_module, "_LOCK_SECONDS", 0.2)
    source.execute("create table not_ours (id int)")
    source.execute("create table t (id int primary key)")
    with source.connect(autocommit=False) as another, source.connect(autocommit=False) as other:
        another.execute("truncate not_ours")
        other.execute("truncate t")
        (pid,) = other.execute("select pg_backend_pid()").fetchone() or (None,)
        declared = spec()
        matching = match(declared.tables, declared.exclude, read_relations(connection))
        with pytest.raises(PgetlError, match=rf"public\.t has been locked for 0\.2 s, by process {pid} ") as caught:
            matching_module.read_candidates(connection, matching.matches)
    assert caught.value.transient
    assert len(matching_module.read_candidates(connection, matching.matches)) == 1
