"""Rules that tell whether publishing a table would do harm. Pure.

PostgreSQL lets any table be published, and then refuses UPDATE and DELETE of *applications*: on a table without a
usable replica identity, on one whose row filter refers to a column outside the identity, on one whose column list omits
part of the identity. So none of these is ever published. A table that is declared `insert_only` is put into a
publication that sends only inserts and truncates, and none of this applies to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_pgetl.engine.model.errors import Finding
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.source.matching import Candidate, CandidateLeaf
from airflow_provider_pgetl.engine.source.published import (
    COLUMN_LISTS_SINCE,
    GENERATED_COLUMNS_SINCE,
    Member,
    Publication,
)
from airflow_provider_pgetl.engine.source.relations import ReplicaIdentity


def judge_declaration(candidate: Candidate, version: int, *, stored_are_sent: bool = True) -> Iterator[Finding]:
    """Judges what is known of a table before it is published. `stored_are_sent`: generated columns that are stored are
    sent, or the server is too old for this to matter."""
    yield from _judge_version(candidate, version)
    yield from _judge_columns(candidate)
    if not candidate.key_needed:
        return
    for table, identity in _identities(candidate):
        yield from _judge_identity(candidate.table, table, identity)
    yield from _judge_leaf_keys(candidate)
    yield from _judge_leaves_to_come(candidate)
    if candidate.match.spec.where is not None:
        yield from _judge_large_values(candidate)
    yield from _judge_column_list(candidate, candidate.match.spec.columns)
    yield from _judge_unsent_identity(candidate, stored_are_sent=stored_are_sent)
    if version < GENERATED_COLUMNS_SINCE:
        yield from _judge_generated_key(candidate)


def judge_member(candidate: Candidate, member: Member) -> Iterator[Finding]:
    """Judges what only the server can tell of a table in the publication: the columns to which its row filter
    refers."""
    if not candidate.key_needed:
        return
    yield from _judge_column_list(candidate, member.columns or ())
    for _, identity in _identities(candidate):
        outside = [] if identity.identity == "full" else [one for one in member.filtered if one not in identity.index]
        if outside:
            yield _filter_outside(candidate.table, outside, column_list=bool(member.columns))
            return


def judge_foreign_publication(publication: Publication, candidates: Sequence[Candidate]) -> Iterator[Finding]:
    """Judges whether a publication that is used as it is sends what was declared."""
    for candidate in candidates:
        spec, table = candidate.match.spec, candidate.table
        if spec.columns or spec.where is not None:
            problem = f"{table} declares columns or a row filter, but {publication.name} is used as it is."
            yield Finding(problem, "Leave these to the publication, or let pgetl manage it.", table=str(table))
        if publication.share(candidate.match.relation.oid, candidate.access.namespace) is None:
            problem = f"The publication {publication.name} does not contain {table}."
            yield Finding(problem, f"{_alter(publication)} ADD TABLE {table.sql}.", table=str(table))
        if candidate.partitioned and not publication.via_root:
            yield _not_via_root(publication, table)
        if member := publication.members.get(candidate.match.relation.oid):
            yield from judge_member(candidate, member)
            if member.row_filter is not None and candidate.key_needed:
                yield from _judge_large_values(candidate)
    yield from _judge_actions(publication, candidates)


def left_out(publication: Publication, *, insert_only: bool, partitioned: bool, truncates: bool) -> str | None:
    """What the publication does not send of a table that it contains; None if it sends everything. `truncates`: whether
    truncates are to be sent."""
    needed = ({"insert"} if insert_only else {"insert", "update", "delete"}) | ({"truncate"} if truncates else set())
    if missing := sorted(needed - publication.actions):
        return f"the publication {publication.name} does not send {', '.join(missing)} any more"
    if partitioned and not publication.via_root:
        return f"the publication {publication.name} sends its changes under the names of its partitions"
    return None


def may_have_left_out(publication: Publication, copied: TableSchema | None) -> str | None:
    """Why the publication may have left out changes of a table since the table was copied, though it sends everything
    by now; None if nothing indicates it. It may have been narrowed and widened again, which leaves no other trace than
    its altered row. If its owner is another, that is what the row was altered for."""
    known, row = None if copied is None else copied.sender, publication.row
    if known is None or known.publication != row.publication or known.xmin == row.xmin or known.owner != row.owner:
        return None
    return f"the publication {publication.name} was altered, and may have left out changes for a while"


# -- rules ------------------------------------------------------------------------------------------------------------


def _identities(candidate: Candidate) -> Iterator[tuple[TableName, ReplicaIdentity]]:
    """The replica identity of the table and, as rows are written to them, those of its leaves."""
    yield candidate.table, candidate.identity
    for one in candidate.leaves:
        if one.leaf.name != candidate.table:
            yield one.leaf.name, one.identity


def _judge_version(candidate: Candidate, version: int) -> Iterator[Finding]:
    spec = candidate.match.spec
    if version < COLUMN_LISTS_SINCE and (spec.columns or spec.where is not None):
        problem = f"{candidate.table} declares columns or a row filter, which need PostgreSQL 15."
        yield Finding(problem, "Take them away, or upgrade the source.", table=str(candidate.table))


def _judge_columns(candidate: Candidate) -> Iterator[Finding]:
    if not candidate.access.columns:
        problem = f"{candidate.table} has no columns, so there is nothing to replicate."
        yield Finding(problem, "Leave it out: name it in `exclude`.", table=str(candidate.table))
    unknown = [name for name in candidate.match.spec.columns if name not in candidate.access.columns]
    if unknown:
        problem = f"{candidate.table} has no column {', '.join(unknown)}."
        yield Finding(problem, f"It has {', '.join(candidate.access.columns)}.", table=str(candidate.table))


def _judge_identity(root: TableName, table: TableName, identity: ReplicaIdentity) -> Iterator[Finding]:
    if identity.usable:
        return
    problem = f"{table} has no usable replica identity: once published, its UPDATE and DELETE would fail at the source."
    remedy = (
        f"Give it a primary key (not deferrable), or `ALTER TABLE {table.sql} REPLICA IDENTITY FULL`, "
        f"or declare {root} with `insert_only = true`."
    )
    yield Finding(problem, remedy, table=str(root))


def _judge_leaf_keys(candidate: Candidate) -> Iterator[Finding]:
    """Changes of a leaf are written to the WAL by *its* replica identity, and are read as if it were the root's."""
    for one in candidate.leaves:
        if one.identity.usable and candidate.identity.usable and not _tells_key(one, candidate.identity):
            problem = f"{one.leaf.name} has another replica identity than {candidate.table}, which it is part of."
            remedy = f"Make them alike: `ALTER TABLE {one.leaf.name.sql} REPLICA IDENTITY …`."
            yield Finding(problem, remedy, table=str(candidate.table))


def _judge_leaves_to_come(candidate: Candidate) -> Iterator[Finding]:
    """A new partition inherits the primary key, and not the replica identity: it has the default one."""
    identity = candidate.identity
    if (
        not candidate.partitioned
        or not identity.usable
        or (identity.key and set(identity.key) == set(identity.primary))
    ):
        return
    problem = (
        f"A partition of {candidate.table} that is created later does not have its replica identity: its UPDATE and "
        "DELETE fail at the source, or make the table Errored here."
    )
    remedy = (
        "Where partitions are created, set `ALTER TABLE … REPLICA IDENTITY FULL` in the same transaction; or give "
        f"{candidate.table} a primary key and the replica identity DEFAULT."
    )
    yield Finding(problem, remedy, "warning", table=str(candidate.table))


def _judge_large_values(candidate: Candidate) -> Iterator[Finding]:
    """When an UPDATE brings a row into the filter, pgoutput omits unchanged values that are stored out of line."""
    wanted = candidate.match.spec.columns or candidate.access.columns
    large = [name for name in wanted if name in candidate.access.large and name not in candidate.identity.index]
    if candidate.identity.identity == "full" or not large:
        return
    problem = (
        f"A row that an UPDATE brings into the row filter of {candidate.table} comes without large values of "
        f"{', '.join(large)} that it leaves unchanged: the table is copied again each time."
    )
    remedy = f"If rows enter the filter by UPDATE, set `ALTER TABLE {candidate.table.sql} REPLICA IDENTITY FULL`."
    yield Finding(problem, remedy, "note", table=str(candidate.table))


def _tells_key(one: CandidateLeaf, root: ReplicaIdentity) -> bool:
    return one.identity.identity == "full" or (bool(root.key) and set(root.key) == set(one.identity.index))


def _judge_column_list(candidate: Candidate, columns: Sequence[str]) -> Iterator[Finding]:
    if not columns or not candidate.identity.usable:
        return
    if full := [table for table, identity in _identities(candidate) if identity.identity == "full"]:
        problem = f"{full[0]} has replica identity full, so that a column list makes UPDATE and DELETE fail."
        remedy = "Publish all columns, choose an index as its replica identity, or declare `insert_only = true`."
        yield Finding(problem, remedy, table=str(candidate.table))
    elif missing := [name for name in candidate.identity.index if name not in columns]:
        problem = f"The column list of {candidate.table} leaves out {', '.join(missing)}, by which rows are known."
        yield Finding(problem, f"Add {', '.join(missing)} to `columns`.", table=str(candidate.table))


def _judge_unsent_identity(candidate: Candidate, *, stored_are_sent: bool) -> Iterator[Finding]:
    """PostgreSQL 18 refuses UPDATE and DELETE if a generated column of the replica identity is not published."""
    unsent = sorted(candidate.access.virtual if stored_are_sent else candidate.access.generated)
    for table, identity in _identities(candidate):
        needed = unsent if identity.identity == "full" else [name for name in unsent if name in identity.index]
        if needed:
            problem = (
                f"The replica identity of {table} contains the generated column {', '.join(needed)}, which is not "
                "published: its UPDATE and DELETE would fail at the source."
            )
            remedy = "Choose an index of other columns as its replica identity, or declare `insert_only = true`."
            yield Finding(problem, remedy, table=str(candidate.table))
            return


def _judge_generated_key(candidate: Candidate) -> Iterator[Finding]:
    if unsent := [name for name in candidate.identity.key if name in candidate.access.generated]:
        problem = f"{candidate.table} is known by the generated column {', '.join(unsent)}, which is never sent."
        remedy = "Choose a replica identity of stored columns, or upgrade the source to PostgreSQL 18."
        yield Finding(problem, remedy, table=str(candidate.table))


def _judge_actions(publication: Publication, candidates: Sequence[Candidate]) -> Iterator[Finding]:
    full = any(candidate.key_needed for candidate in candidates)
    needed = ("insert", "update", "delete") if full else ("insert",)
    if missing := [action for action in needed if action not in publication.actions]:
        problem = f"The publication {publication.name} does not send {', '.join(missing)}."
        yield Finding(problem, f"{_alter(publication)} SET (publish = 'insert, update, delete, truncate').")
    if "truncate" not in publication.actions:
        problem = f"The publication {publication.name} does not send truncates: the destination keeps such rows."
        yield Finding(problem, f"{_alter(publication)} SET (publish = '…, truncate').", "warning")


def _filter_outside(table: TableName, columns: Sequence[str], *, column_list: bool) -> Finding:
    """`column_list`: whether only some columns are published, which replica identity full rules out."""
    problem = (
        f"The row filter of {table} looks at {', '.join(columns)}, outside of its replica identity: "
        "its UPDATE and DELETE would fail at the source."
    )
    other = f"set `ALTER TABLE {table.sql} REPLICA IDENTITY FULL`"
    if column_list:
        other = f"choose a unique index with {', '.join(columns)} as its replica identity"
    remedy = f"Filter by identity columns, {other}, or use `insert_only`."
    return Finding(problem, remedy, table=str(table))


def _not_via_root(publication: Publication, table: TableName) -> Finding:
    problem = f"{publication.name} sends changes of {table} under the names of its partitions."
    return Finding(problem, f"{_alter(publication)} SET (publish_via_partition_root = true).", table=str(table))


def _alter(publication: Publication) -> str:
    return f"ALTER PUBLICATION {publication.name}"
