"""What there is to know of a declared table before it is published and copied.

Read from the present, by a role that need not be able to read the tables themselves: finding that out is the purpose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg.errors import LockNotAvailable

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.source.identity import ReplicaIdentity, read_identities
from airflow_provider_pgetl.engine.source.leaves import Leaf, read_leaves
from airflow_provider_pgetl.engine.source.matching import Match
from airflow_provider_pgetl.engine.source.published import ENTERED_NAMESPACE, Namespace
from airflow_provider_pgetl.engine.tables import TableName

_LOCK_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Access:
    """What our role may do with one table.

    `readable` is SELECT on the whole of it: that on columns does not reach the row's place, by which ranges are read.
    `virtual` are those of the `generated` columns that are not stored, and so cannot be sent.
    `large` are the columns whose values may be stored out of line.
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
    access: Access


@dataclass(frozen=True, slots=True)
class Candidate:
    """A declared table, with the leaves that hold its rows (itself, unless it is partitioned)."""

    match: Match
    identity: ReplicaIdentity
    access: Access
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
    """The matches with what is known of them; one that was dropped in the meantime is left out."""
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
    """Their sizes take a lock, for which nobody is to wait without a word."""
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'".encode())
            return read_leaves(connection, roots)
    except PgetlError as error:
        if isinstance(error.__cause__, LockNotAvailable):
            raise _locked(connection, roots) or error from error
        raise


def _locked(connection: Connection, roots: Sequence[int]) -> PgetlError | None:
    """Who holds one of the tables, or a partition of one; None if nobody does any more."""
    with server_errors("Locks could not be read"):
        row = connection.execute(_LOCKS, [list(roots)]).fetchone()
    if row is None:
        return None
    message = f"{TableName(row[0], row[1])} has been locked for {_LOCK_SECONDS} s, by process {row[2]} of the source."
    return PgetlError(ErrorKind.CONNECTION, message, remedy="Wait until its transaction has ended, or end it.")


def _read_access(connection: Connection, oids: Sequence[int]) -> Mapping[int, Access]:
    with server_errors("Privileges could not be read"):
        rows = connection.execute(_ACCESS, [list(oids)]).fetchall()
    return {
        oid: Access(
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
