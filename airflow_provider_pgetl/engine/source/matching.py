"""Matches declarations with the tables of the source, and reads what has to be known of the tables.

Matching is pure, and expects declarations that are valid in themselves. A partitioned table is matched by its root, and
its leaves belong to it. A name written out takes precedence over a pattern that covers it. What a pattern covers but
logical replication cannot follow (views, foreign and unlogged tables) is skipped; the same relation written out is an
error, because it was meant. Findings are errors of the declaration; their `table` is the declaration's own text, by
which its line can be found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from psycopg.errors import LockNotAvailable

from airflow_provider_pgetl.engine.config.spec import TableSpec
from airflow_provider_pgetl.engine.config.validation import nearest
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Finding, PgetlError
from airflow_provider_pgetl.engine.model.tables import Pattern, TableName, parse_table
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.source.published import ENTERED_NAMESPACE, Namespace
from airflow_provider_pgetl.engine.source.relations import (
    Leaf,
    ReplicaIdentity,
    SourceRelation,
    read_identities,
    read_leaves,
)

RESERVED_SCHEMAS = frozenset({"pgetl"})


@dataclass(frozen=True, slots=True)
class Match:
    """A table of the source with the declaration that selects it."""

    relation: SourceRelation
    spec: TableSpec

    @property
    def table(self) -> TableName:
        return self.relation.name

    @property
    def destination(self) -> TableName:
        """The name of the table in the destination: its own name unless the declaration says otherwise."""
        return parse_table(self.spec.destination) if self.spec.destination else self.table


@dataclass(frozen=True, slots=True)
class Matching:
    """The tables in order of their names, and the findings. If one of the findings is an error, the tables must not be
    used."""

    matches: tuple[Match, ...]
    findings: tuple[Finding, ...]


def match(
    specs: Sequence[TableSpec],
    exclude: Sequence[str],
    relations: Sequence[SourceRelation],
) -> Matching:
    """Matches declarations with relations. Relations in `RESERVED_SCHEMAS` are ignored."""
    present = {relation.name: relation for relation in relations if relation.name.schema not in RESERVED_SCHEMAS}
    excluded = [Pattern.parse(text) for text in exclude]
    findings: list[Finding] = []
    chosen: dict[TableName, Match] = {}
    for spec in specs:
        if not spec.pattern.wildcard:
            findings += _take_named(spec, present, excluded, chosen)
    named = frozenset(chosen)
    for spec in specs:
        if spec.pattern.wildcard:
            findings += _take_pattern(spec, present, excluded, chosen, named)
    findings += _idle_exclusions(dict(zip(exclude, excluded, strict=True)), present)
    matches = tuple(chosen[name] for name in sorted(chosen))
    findings += _shared_destinations(matches)
    return Matching(matches, tuple(replace(finding, kind=ErrorKind.CONFIG) for finding in findings))


def _take_named(
    spec: TableSpec,
    present: Mapping[TableName, SourceRelation],
    excluded: Sequence[Pattern],
    chosen: dict[TableName, Match],
) -> Iterator[Finding]:
    name = spec.pattern.literal
    relation = present.get(name)
    if relation is None:
        yield _missing(spec, present)
    elif not relation.replicable:
        yield _unsuitable(spec, relation)
    elif _covering(name, excluded):
        problem = f"{name} is declared, and excluded as well."
        yield Finding(problem, "Take away one of the two.", table=spec.name)
    else:
        chosen.setdefault(name, Match(relation, spec))


def _take_pattern(
    spec: TableSpec,
    present: Mapping[TableName, SourceRelation],
    excluded: Sequence[Pattern],
    chosen: dict[TableName, Match],
    named: frozenset[TableName],
) -> Iterator[Finding]:
    covered = [relation for name, relation in present.items() if spec.pattern.matches(name)]
    wanted = [relation for relation in covered if relation.replicable and not _covering(relation.name, excluded)]
    if not wanted:
        yield _nothing(spec, covered, present)
    for relation in wanted:
        if relation.name in named:
            continue
        earlier = chosen.setdefault(relation.name, Match(relation, spec))
        if _options(earlier.spec) != _options(spec):
            yield _contradiction(relation.name, earlier.spec, spec)
    yield from (_passed_over(relation) for relation in covered if _silently_missed(relation, excluded))


def _covering(name: TableName, patterns: Sequence[Pattern]) -> Pattern | None:
    return next((pattern for pattern in patterns if pattern.matches(name)), None)


def _options(spec: TableSpec) -> tuple[object, ...]:
    return spec.columns, spec.where, spec.insert_only, spec.existing, spec.transform


def _silently_missed(relation: SourceRelation, excluded: Sequence[Pattern]) -> bool:
    """Whether it is an unlogged table that is not excluded. It looks like any other table, so its absence could go
    unnoticed."""
    unlogged = relation.persistence == "unlogged" and relation.root is None
    return unlogged and _covering(relation.name, excluded) is None


# -- findings ---------------------------------------------------------------------------------------------------------


def _missing(spec: TableSpec, present: Mapping[TableName, SourceRelation]) -> Finding:
    name = spec.pattern.literal
    remedy = _did_you_mean(str(name), present) or "Correct the name, or create the table first."
    return Finding(f"There is no table {name} in the source.", remedy, table=spec.name)


def _unsuitable(spec: TableSpec, relation: SourceRelation) -> Finding:
    if relation.root is not None and relation.kind in ("table", "partitioned table"):
        problem = f"{relation.name} is a partition of {relation.root}."
        return Finding(problem, f"Declare {relation.root}; its partitions belong to it.", table=spec.name)
    problem = f"{relation.name} is no table that can be followed but {_article(relation.description)}."
    return Finding(problem, _instead(relation), table=spec.name)


def _instead(relation: SourceRelation) -> str:
    if relation.persistence == "unlogged":
        return f"Its changes are not in the WAL: `ALTER TABLE {relation.name.sql} SET LOGGED`, or take it out."
    return "Declare the tables that it shows instead, or take it out."


def _nothing(
    spec: TableSpec, covered: Sequence[SourceRelation], present: Mapping[TableName, SourceRelation]
) -> Finding:
    problem = f"The pattern {spec.name} matches no table."
    if any(relation.replicable for relation in covered):
        return Finding(problem, "All that it covers is excluded; take it out.", table=spec.name)
    if covered:
        kinds = ", ".join(sorted({"partition" if one.root else one.description for one in covered}))
        return Finding(problem, f"It covers only what cannot be followed by itself ({kinds}).", table=spec.name)
    remedy = _did_you_mean(spec.name, present) or _schemas(present)
    return Finding(problem, remedy, table=spec.name)


def _contradiction(name: TableName, earlier: TableSpec, later: TableSpec) -> Finding:
    problem = f"{name} is matched by {earlier.name} and by {later.name}, which ask for different things."
    return Finding(problem, "Declare it by its own name, which wins over patterns.", table=later.name)


def _passed_over(relation: SourceRelation) -> Finding:
    problem = f"{relation.name} is unlogged and is left out: its changes are not in the WAL."
    remedy = f"`ALTER TABLE {relation.name.sql} SET LOGGED` if it is to be replicated, or exclude it."
    return Finding(problem, remedy, "warning", table=str(relation.name))


def _idle_exclusions(excluded: Mapping[str, Pattern], present: Mapping[TableName, SourceRelation]) -> Iterator[Finding]:
    for text, pattern in excluded.items():
        if not any(pattern.matches(name) for name in present):
            remedy = _did_you_mean(text, present) or "Correct it, or take it out."
            yield Finding(f"The exclusion {text} matches nothing.", remedy, "warning", table=text)


def _shared_destinations(matches: Sequence[Match]) -> Iterator[Finding]:
    counted = Counter(one.destination for one in matches)
    for destination, times in counted.items():
        if times > 1:
            names = ", ".join(str(one.table) for one in matches if one.destination == destination)
            problem = f"{names} all go to {destination}."
            yield Finding(problem, "Give each a `destination` of its own.", table=str(destination))


def _did_you_mean(text: str, present: Mapping[TableName, SourceRelation]) -> str | None:
    meant = nearest(text, [str(name) for name, relation in present.items() if relation.replicable])
    return f"Did you mean {meant}?" if meant else None


def _schemas(present: Mapping[TableName, SourceRelation]) -> str:
    schemas = sorted({name.schema for name, relation in present.items() if relation.replicable})
    return f"There are tables in {', '.join(schemas)}." if schemas else "The source has no table at all."


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


# -- What has to be known of a declared table before it is published and copied. ---------------------------------------
#
# Read from the present catalog, by a role that need not be able to read the tables themselves: whether it can is one of
# the results.

_LOCK_SECONDS = 10


@dataclass(frozen=True, slots=True)
class RoleAccess:
    """What the session's role may do with one table.

    `readable` is SELECT on the whole table: SELECT on columns does not include ctid, by which ranges are read.
    `virtual` are those of the `generated` columns that are not stored, and so cannot be sent. `large` are the columns
    whose values may be stored out of line.
    """

    namespace: Namespace
    owner: str
    owned: bool
    visible: bool
    readable: bool
    row_security: bool
    columns: tuple[str, ...]
    generated: frozenset[str]
    virtual: frozenset[str]
    large: frozenset[str]


@dataclass(frozen=True, slots=True)
class CandidateLeaf:
    leaf: Leaf
    identity: ReplicaIdentity
    access: RoleAccess


@dataclass(frozen=True, slots=True)
class Candidate:
    """A declared table, with the leaves that hold its rows (itself, unless it is partitioned)."""

    match: Match
    identity: ReplicaIdentity
    access: RoleAccess
    leaves: tuple[CandidateLeaf, ...]

    @property
    def table(self) -> TableName:
        return self.match.table

    @property
    def partitioned(self) -> bool:
        return self.match.relation.kind == "partitioned table"

    @property
    def key_needed(self) -> bool:
        """Whether the source must say which row an UPDATE or DELETE was about."""
        return not self.match.spec.insert_only


def read_candidates(connection: Connection, matches: Sequence[Match]) -> tuple[Candidate, ...]:
    """The matches with what is known of their tables; a table that was dropped in the meantime is left out."""
    roots = [match.relation.oid for match in matches]
    leaves = _read_leaves(connection, roots)
    oids = sorted({*roots, *(leaf.oid for several in leaves.values() for leaf in several)})
    identities = read_identities(connection, oids)
    access = _read_access(connection, oids)
    return tuple(
        Candidate(
            match,
            identities[match.relation.oid],
            access[match.relation.oid],
            tuple(CandidateLeaf(leaf, identities[leaf.oid], access[leaf.oid]) for leaf in leaves[match.relation.oid]),
        )
        for match in matches
        if match.relation.oid in access
    )


def _read_leaves(connection: Connection, roots: Sequence[int]) -> Mapping[int, tuple[Leaf, ...]]:
    """Reading the sizes takes a lock. If it is not granted in time, the error names the process that holds a
    conflicting one."""
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'".encode())
            return read_leaves(connection, roots)
    except PgetlError as error:
        if isinstance(error.__cause__, LockNotAvailable):
            raise _locked(connection, roots) or error from error
        raise


def _locked(connection: Connection, roots: Sequence[int]) -> PgetlError | None:
    """The error that names the process which holds one of the tables, or a partition of one; None if no process does
    any more."""
    with server_errors("Locks could not be read"):
        row = connection.execute(_LOCKS, [list(roots)]).fetchone()
    if row is None:
        return None
    message = f"{TableName(row[0], row[1])} has been locked for {_LOCK_SECONDS} s, by process {row[2]} of the source."
    return PgetlError(ErrorKind.CONNECTION, message, remedy="Wait until its transaction has ended, or end it.")


def _read_access(connection: Connection, oids: Sequence[int]) -> Mapping[int, RoleAccess]:
    with server_errors("Privileges could not be read"):
        rows = connection.execute(_ACCESS, [list(oids)]).fetchall()
    return {
        oid: RoleAccess(
            Namespace(namespace, entered),
            owner,
            owned,
            visible,
            readable,
            row_security,
            tuple(columns),
            frozenset(generated),
            frozenset(virtual),
            frozenset(large),
        )
        for (
            oid,
            namespace,
            entered,
            owner,
            owned,
            visible,
            readable,
            row_security,
            columns,
            generated,
            virtual,
            large,
        ) in rows
    }


_LOCKS = """
select n.nspname::text, c.relname::text, l.pid
from pg_locks l
join pg_class c on c.oid = l.relation
join pg_namespace n on n.oid = c.relnamespace
where l.mode = 'AccessExclusiveLock' and l.granted and c.relkind in ('r', 'p')
  and l.database = (select oid from pg_database where datname = current_database()) and l.pid <> pg_backend_pid()
  and coalesce(pg_partition_root(c.oid)::oid, c.oid) = any(%s::oid[])
order by c.oid
limit 1
"""

_ACCESS = f"""
select c.oid, n.oid, coalesce({ENTERED_NAMESPACE}, 0),
       pg_get_userbyid(c.relowner)::text, pg_has_role(c.relowner, 'USAGE'),
       has_schema_privilege(n.oid, 'USAGE'),
       has_table_privilege(c.oid, 'SELECT'),
       row_security_active(c.oid),
       coalesce(array_agg(a.attname::text order by a.attnum) filter (where a.attnum is not null), '{{}}'),
       coalesce(array_agg(a.attname::text) filter (where a.attgenerated <> ''), '{{}}'),
       coalesce(array_agg(a.attname::text) filter (where a.attgenerated = 'v'), '{{}}'),
       coalesce(array_agg(a.attname::text) filter (where a.attstorage in ('x', 'e') and not (
           a.atttypid in ('varchar'::regtype, 'bpchar'::regtype) and a.atttypmod between 0 and 500)), '{{}}')
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.oid = any(%s::oid[])
group by c.oid, n.oid
"""
