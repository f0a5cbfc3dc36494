"""Preflight: checks, before any work, whether a pipeline can run on this source, and whether it would harm the source.

`check` reports, and changes nothing: what only the server can judge (row filters, ownership) is tried in a transaction
that is rolled back. Rules are pure functions over facts; findings are data, displayed elsewhere. The state database and
the destination are not checked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_pgetl.engine.config.spec import PipelineSpec
from airflow_provider_pgetl.engine.model.errors import Finding
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.quantities import format_size
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema, quote_identifier
from airflow_provider_pgetl.engine.postgres.recoding import CODECS
from airflow_provider_pgetl.engine.postgres.sessions import REMEDY, commits_wait
from airflow_provider_pgetl.engine.source.catalog import read_declared
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.matching import Candidate, Matching, RoleAccess, match, read_candidates
from airflow_provider_pgetl.engine.source.publication import judge_unmanaged, try_publication
from airflow_provider_pgetl.engine.source.published import GENERATED_COLUMNS_SINCE, read_publications
from airflow_provider_pgetl.engine.source.relations import read_relations
from airflow_provider_pgetl.engine.source.server import ServerFacts, read_server
from airflow_provider_pgetl.engine.source.slots import Slot, SlotName

OLDEST_MAJOR = 14
_STANDBY_SINCE = 16
_FAILOVER_SINCE = 17
# From these minor versions on, changes concurrent with ALTER PUBLICATION … ADD TABLE are never lost.
_SAFE_MINORS: Mapping[int, int] = {14: 18, 15: 13, 16: 9, 17: 5}


@dataclass(frozen=True, slots=True)
class SourceSurvey:
    """What the source has for a pipeline: the tables that the declarations select, and what is known of them."""

    matching: Matching
    candidates: tuple[Candidate, ...]


def survey(connection: Connection, spec: PipelineSpec) -> SourceSurvey:
    matching = match(spec.tables, spec.exclude, read_relations(connection))
    return SourceSurvey(matching, read_candidates(connection, matching.matches))


def check(connection: Connection, spec: PipelineSpec, instance: str | None = None) -> list[Finding]:
    """All findings on the source. `instance` is the state store's, None if it has no such pipeline."""
    facts = read_server(connection, spec.id)
    found = survey(connection, spec)
    findings = [*found.matching.findings, *judge_server(facts, spec)]
    findings += [one for candidate in found.candidates for one in judge_access(candidate, facts.role)]
    findings += judge_encoding(connection.info.parameter_status("server_encoding") or "UTF8")
    findings += _judge_columns(connection, spec, found.candidates)
    if facts.major < OLDEST_MAJOR or facts.wal_level != "logical":
        return findings
    if facts.standby:
        return findings + list(judge_unmanaged(connection, spec, found.candidates))
    return findings + try_publication(connection, spec, instance, found.candidates) + _judge_reach(connection, spec)


# -- the server -------------------------------------------------------------------------------------------------------


def judge_server(facts: ServerFacts, spec: PipelineSpec) -> Iterator[Finding]:
    """Judges version, settings, free slots and walsenders, and the session's role."""
    if facts.major < OLDEST_MAJOR:
        problem = f"The source is PostgreSQL {facts.major}; pgetl needs {OLDEST_MAJOR} or later."
        yield Finding(problem, "Upgrade the source.")
    if facts.minor < _SAFE_MINORS.get(facts.major, 0):
        yield _unsafe_minor(facts)
    if facts.wal_level != "logical":
        problem = f"The source has wal_level = {facts.wal_level}, which cannot be decoded."
        yield Finding(problem, "ALTER SYSTEM SET wal_level = 'logical', then restart it.")
    if not facts.may_replicate:
        problem = f"The role {facts.role} may not replicate."
        yield Finding(problem, f"ALTER ROLE {quote_identifier(facts.role)} REPLICATION.")
    yield from _judge_headroom(facts, spec)
    yield from _judge_retention(facts)
    yield from _judge_synchronous(facts)
    if spec.source.failover:
        yield from _judge_failover(facts)
    if facts.standby:
        yield from _judge_standby(facts, spec)


def judge_encoding(encoding: str) -> Iterator[Finding]:
    """If the stream is converted by pgetl, a value that cannot be converted concerns its table alone."""
    if encoding in ("UTF8", "LATIN1"):
        return
    if encoding in CODECS:
        problem = f"The source's database is in {encoding}: a text that is not valid in UTF8 makes its table Errored."
        remedy = "Correct such values, or leave their columns out with `columns`."
    else:
        problem = f"The source's database is in {encoding}: a text that has no equivalent in UTF8 ends the stream."
        remedy = "Correct such values before they are published, or leave their columns out with `columns`."
    yield Finding(problem, remedy, "warning")


def _unsafe_minor(facts: ServerFacts) -> Finding:
    safe = f"{facts.major}.{_SAFE_MINORS[facts.major]}"
    problem = f"PostgreSQL {facts.major}.{facts.minor} can lose changes while a table is added to a publication."
    return Finding(problem, f"Upgrade the source to {safe} or later.", "warning")


def _judge_headroom(facts: ServerFacts, spec: PipelineSpec) -> Iterator[Finding]:
    needed = 1 + spec.copy.table_workers
    for setting, most, used in (
        ("max_replication_slots", facts.max_slots, facts.used_slots),
        ("max_wal_senders", facts.max_walsenders, facts.used_walsenders),
    ):
        free = most - used
        if free < needed:
            problem = f"{setting} is {most}, of which others use {used}; this pipeline uses up to {needed}."
            remedy = f"Raise {setting} to {used + needed} or more (needs a restart), or lower copy.table_workers."
            yield Finding(problem, remedy, "error" if free < 2 else "warning")


def _judge_retention(facts: ServerFacts) -> Iterator[Finding]:
    if facts.slot_wal_megabytes < 0:
        problem = "max_slot_wal_keep_size is unlimited: a pipeline that stands still keeps WAL until the disk is full."
        yield Finding(problem, "Set it to what the disk can spare.", "note")
    else:
        problem = f"max_slot_wal_keep_size is {facts.slot_wal_megabytes} MB: a lag beyond it loses the slot."
        yield Finding(problem, "Make it larger than the WAL of the longest stop you plan.", "note")
    if facts.slot_idle_seconds:
        problem = f"idle_replication_slot_timeout is {facts.slot_idle_seconds} s: a longer stop loses the slot."
        yield Finding(problem, "Set it to 0, or make it longer than any stop you plan.", "warning")


def _judge_failover(facts: ServerFacts) -> Iterator[Finding]:
    if facts.major < _FAILOVER_SINCE:
        problem = f"`failover = true` needs PostgreSQL {_FAILOVER_SINCE}; the source is {facts.major}."
        yield Finding(problem, "Set it to false, or upgrade the source.")
    elif not facts.synchronized_standby_slots:
        problem = "`failover = true`, but synchronized_standby_slots is empty: a stream may run ahead of the standby."
        yield Finding(problem, "Set it to the standby's physical slot on the primary.", "warning")
    if facts.major >= _FAILOVER_SINCE and not facts.slots_are_synchronised:
        problem = "`failover = true`, but no standby that synchronises slots is connected: none has them to take over."
        remedy = "On the standby set sync_replication_slots = on, primary_slot_name and a dbname in primary_conninfo."
        yield Finding(problem, remedy, "warning")


def _judge_synchronous(facts: ServerFacts) -> Iterator[Finding]:
    """Judges standbys for which commits, or streams, wait."""
    if facts.standbys_missing > 0:
        yield Finding(commits_wait("the source", facts.standbys_missing), REMEDY)
    if re.search(r"(^|[(,])\s*\"?\*", facts.synchronous_standby_names):
        problem = "synchronous_standby_names = '*' means this pipeline's stream, too: commits would wait for it."
        yield Finding(problem, "Name the standbys there.")
    if facts.unknown_standby_slots and not facts.standby:
        problem = f"Streams with `failover` wait for the slot {facts.unknown_standby_slots}, which no standby uses."
        remedy = "Connect the standby, or take the slot out of synchronized_standby_slots."
        yield Finding(problem, remedy, "warning")


def _judge_standby(facts: ServerFacts, spec: PipelineSpec) -> Iterator[Finding]:
    if facts.major < _STANDBY_SINCE:
        problem = f"The source is a standby; these can be decoded from PostgreSQL {_STANDBY_SINCE} on."
        yield Finding(problem, "Connect to the primary.")
        return
    if spec.source.manage_publication:
        problem = "The source is a standby, where no publication can be made."
        yield Finding(problem, "Make the publication on the primary and set `manage_publication = false`.")
    if spec.state == spec.source.uri:
        problem = "The source is a standby, where no state can be stored."
        yield Finding(problem, "Set [state] uri to another database.")
    if not facts.hot_standby_feedback:
        problem = "hot_standby_feedback is off on the standby: the primary may remove what a slot here still needs."
        yield Finding(problem, "Set hot_standby_feedback = on, and let the standby use a physical slot.", "warning")


def judge_unused(slots: Mapping[SlotName, Slot], instances: Mapping[str, str], wal_end: Boundary) -> Iterator[Finding]:
    """Judges slots that no session uses, of pipelines that the state store does not have. `instances`: the instances of
    those that it has, by their ids.

    It cannot be told from here whether such a slot is left over, or belongs to a stopped pipeline of another store.
    """
    for name, slot in slots.items():
        if instances.get(name.pipeline) != name.instance:
            yield _unknown_slot(name, slot.retained(wal_end))


def _unknown_slot(name: SlotName, retained: int | None) -> Finding:
    keeps = "no WAL any more" if retained is None else f"{format_size(retained)} of WAL"
    problem = f"The slot {name} retains {keeps}; no session uses it, and no pipeline of this state store has it."
    remedy = (
        f"If another state store has pipeline {name.pipeline} (instance {name.instance}), which only stands still, "
        f"leave it; if that is gone for good: SELECT pg_drop_replication_slot('{name}');"
    )
    return Finding(problem, remedy, "warning")


# -- tables -----------------------------------------------------------------------------------------------------------


def judge_access(candidate: Candidate, role: str) -> Iterator[Finding]:
    """Judges whether the rows can be read. They are read from the leaves, to which privileges on a root do not
    extend."""
    for one in candidate.leaves:
        if not one.leaf.followed:
            problem = (
                f"{one.leaf.name}, part of {candidate.table}, is unlogged or foreign: the WAL has no changes of it."
            )
            yield Finding(problem, "Make it a logged table, or detach it.", table=str(candidate.table))
            continue
        yield from _judge_reading(candidate.table, one.leaf.name, one.access, role)


def _judge_reading(root: TableName, leaf: TableName, access: RoleAccess, role: str) -> Iterator[Finding]:
    quoted = quote_identifier(role)
    if not access.visible:
        problem = f"The role {role} may not use the schema {leaf.schema} of {leaf}."
        yield Finding(problem, f"GRANT USAGE ON SCHEMA {quote_identifier(leaf.schema)} TO {quoted}.", table=str(root))
    if not access.readable:
        problem = f"The role {role} may not read {leaf}."
        yield Finding(problem, f"GRANT SELECT ON {leaf.sql} TO {quoted}.", table=str(root))
    if access.row_security:
        problem = f"Row security hides rows of {leaf} from the role {role}: a copy would be incomplete."
        yield Finding(problem, f"ALTER ROLE {quoted} BYPASSRLS.", table=str(root))


def declared_schemas(
    connection: Connection, spec: PipelineSpec, candidates: Sequence[Candidate]
) -> Mapping[TableName, TableSchema]:
    """The schemas of these tables, with the columns that the source would send."""
    stored = connection.info.server_version >= GENERATED_COLUMNS_SINCE
    if not spec.source.manage_publication:
        stored = all(one.generated for one in read_publications(connection, [spec.publication]))
    return read_declared(connection, candidates, stored_are_sent=stored)


def _judge_columns(connection: Connection, spec: PipelineSpec, candidates: Sequence[Candidate]) -> Iterator[Finding]:
    schemas = declared_schemas(connection, spec, candidates)
    for candidate in candidates:
        yield from judge_types(schemas[candidate.table])
        yield from judge_generated(candidate, schemas[candidate.table])


def judge_types(schema: TableSchema) -> Iterator[Finding]:
    """No type is refused: PostgreSQL can write every value as text."""
    slow = [f"{column.name} ({column.type.name})" for column in schema.columns if not column.type.sendable]
    if slow:
        problem = f"{', '.join(slow)} of {schema.table} have no binary form and travel as text."
        yield Finding(problem, "Nothing has to be done.", "note", table=str(schema.table))


def judge_generated(candidate: Candidate, schema: TableSchema) -> Iterator[Finding]:
    """Reports generated columns that are not sent. Columns that the declared column list omits are omitted on
    purpose."""
    wanted = candidate.match.spec.columns or candidate.access.columns
    unsent = [name for name in wanted if name in candidate.access.generated and name not in schema.names]
    if unsent:
        problem = f"{candidate.table} is replicated without {', '.join(unsent)}, which the source generates: "
        remedy = (
            "A table that pgetl makes in a Postgres destination generates it by the same expression, where it can; "
            "let any other table of a destination generate it itself."
        )
        yield Finding(problem + "the WAL has no values of it.", remedy, "note", table=str(candidate.table))


def _judge_reach(connection: Connection, spec: PipelineSpec) -> list[Finding]:
    """A publication of all tables also sends the tables of the state, if they are in the same database."""
    broad = [one for one in read_publications(connection, [spec.publication]) if one.all_tables]
    if not broad or spec.state != spec.source.uri:
        return []
    problem = f"The publication {spec.publication} is FOR ALL TABLES, and the pipeline's own state is among them."
    remedy = "Set [state] uri to another database, or publish the tables by name."
    return [Finding(problem, remedy, "warning")]
