"""How a table's schema has changed since the table was copied. Comparisons are pure.

A table is compared with two descriptions. RELATION, in the stream, is exact for the rows that follow it, but contains
neither a column's attribute number (a column that was dropped and added again looks the same) nor the primary key under
replica identity full. The catalog contains them, but as of the present: a table may be found to have changed before the
changes that were made earlier have been applied. In both cases the table is copied again.

An ALTER that rewrites all rows (ALTER TYPE … USING) sends none of them: only the catalog shows that files were
exchanged and that a column was altered.

A row of a partition is written to the WAL by the partition's own replica identity, and sent under the root's name. The
partition's identity must include the root's key: otherwise its updates and deletes would match no row, or another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from airflow_provider_pgetl.engine.model.tables import FIRST_OF_USERS, Identity, PgType, Sender, TableName, TableSchema
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.source.published import (
    ENTERED_NAMESPACE,
    Namespace,
    Publication,
    Share,
    read_publications,
)
from airflow_provider_pgetl.engine.source.relations import ReplicaIdentity, read_identities, read_types

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """The properties of a column that are compared; `number` is 0 where the description does not contain it."""

    type: int
    modifier: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class PublishedDescription:
    """A published table as it is compared. `told` are the columns that the replica identity covers. `key` is None where
    it is not known."""

    columns: Mapping[str, ColumnForm]
    identity: Identity
    told: Set[str]
    key: Set[str] | None = None


@dataclass(frozen=True, slots=True)
class Storage:
    """The file number of each leaf, by its OID, and the transaction that last altered each column."""

    files: Mapping[int, int]
    altered: Mapping[str, int]


def storage(schema: TableSchema) -> Storage:
    return Storage(dict(schema.files), {one.name: one.altered for one in schema.columns})


def rewritten(before: Storage, now: Storage) -> bool:
    """Whether an ALTER may have changed values, which the stream does not show. Such an ALTER writes the rows to new
    files. TRUNCATE and VACUUM FULL do so too, but alter no column; and an ALTER that changes no value keeps the
    files."""
    return _moved(before.files, now.files) and _moved(before.altered, now.altered)


def _moved(before: Mapping[Any, int], now: Mapping[Any, int]) -> bool:
    return any(value and now.get(one, value) != value for one, value in before.items())


def described(schema: TableSchema) -> PublishedDescription:
    columns = {one.name: ColumnForm(one.type.oid, one.modifier, one.number) for one in schema.columns}
    told = schema.names if schema.identity == "full" else schema.key
    return PublishedDescription(columns, schema.identity, frozenset(told), frozenset(schema.key))


def differences(schema: TableSchema, now: PublishedDescription) -> list[str]:
    """Describes what differs from the version that was copied."""
    before = described(schema)
    found = list(_of_columns(before.columns, now.columns))
    # If the rows of updates and deletes cannot be identified, only inserts are published: the table may have any
    # identity.
    if schema.key or schema.identity == "full":
        found += _of_identity(before, now)
    return found


def redefined(before: PgType, now: PgType) -> str | None:
    """Describes how a type was altered so that all its values are different; None if it was not. No row and no RELATION
    is sent then."""
    labels = _numbered(now, now.labels, before)
    if renamed := [
        label for label, number in _numbered(before, before.labels, before) if (label, number) not in labels
    ]:
        return f"the label {renamed[0]} of the type {before.name} was renamed"
    if _attributes(before, before) != _attributes(now, before):
        return f"the attributes of the type {before.name} are others"
    parts = [(one, other) for (_, one), (_, other) in zip(before.fields, now.fields, strict=True)]
    if before.inner is not None and now.inner is not None and before.inner.oid == now.inner.oid:
        parts.append((before.inner, now.inner))
    return next((why for one, other in parts if (why := redefined(one, other))), None)


def _attributes(one: PgType, before: PgType) -> list[tuple[tuple[str, int], int]]:
    return _numbered(one, [(name, field.oid) for name, field in one.fields], before)


def _numbered(one: PgType, parts: Sequence[T], before: PgType) -> list[tuple[T, int]]:
    """The type's labels or attributes with their numbers, if those of `before` are known."""
    return list(zip(parts, one.numbers if before.numbers else [0] * len(parts), strict=False))


def redefined_columns(schema: TableSchema, now: Mapping[str, int]) -> list[str]:
    """Describes the columns that the source does not send and now computes by another expression. `now`: the OID under
    which each column's expression is stored; a new expression has another OID."""
    return [
        f"{one.column.name} is not computed as it was"
        for one in schema.generated
        if one.definition and now.get(one.column.name) != one.definition
    ]


def tells_key(identity: Identity, told: Collection[str], schema: TableSchema) -> bool:
    """Whether a partition's WAL identifies the root's rows in updates and deletes. A partition without an identity has
    no updates and deletes: they fail at the source."""
    if identity == "full" or not told:
        return True
    if not schema.key:
        return schema.identity != "full"
    return set(schema.key) <= set(told)


def alike(leaf: TableName) -> str:
    """The remedy for a partition with another replica identity."""
    return f"`ALTER TABLE {leaf.sql} REPLICA IDENTITY FULL` at the source"


def _of_columns(before: Mapping[str, ColumnForm], now: Mapping[str, ColumnForm]) -> Iterator[str]:
    yield from (f"{name} was added" for name in now if name not in before)
    yield from (f"{name} was dropped" for name in before if name not in now)
    for name in now:
        if name in before and (difference := _of_column(before[name], now[name])):
            yield f"{name} {difference}"
    if now.keys() == before.keys() and list(now) != list(before):
        yield "their order differs"


def _of_column(before: ColumnForm, now: ColumnForm) -> str | None:
    if before.type != now.type:
        return "has another type"
    if before.modifier != now.modifier:
        return "has another length, precision or scale"
    if before.number and now.number and before.number != now.number:
        return "was dropped and added again"
    return None


def _of_identity(before: PublishedDescription, now: PublishedDescription) -> Iterator[str]:
    if now.identity != before.identity:
        yield f"its replica identity was {before.identity} and is {now.identity}"
    elif now.told != before.told:
        yield f"its replica identity was {_listed(before.told)} and is {_listed(now.told)}"
    elif now.key is not None and now.key != before.key:
        yield f"its primary key was {_listed(before.key or ())} and is {_listed(now.key)}"


def _listed(names: Collection[str]) -> str:
    return f"({', '.join(sorted(names))})"


# -- What a running pipeline checks regularly: its publications and tables, as the catalog has them now. ---------------


@dataclass(frozen=True, slots=True)
class WatchedColumn:
    """A column. `generation` is the OID of a generated column's expression; 0 for any other column."""

    name: str
    form: ColumnForm
    generated: str
    altered: int = 0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class WatchedLeaf:
    """A partition that holds rows.

    `attached`: it was a table before it became a partition. `followed`: its changes are in the WAL; those of a foreign
    or unlogged partition are not. `attachment`: see `Leaf`. `emptied`: its file was created empty and was not vacuumed
    or analyzed since, as after TRUNCATE, and not after VACUUM FULL.
    """

    name: TableName
    identity: ReplicaIdentity
    oid: int = 0
    file: int = 0
    attached: bool = False
    followed: bool = True
    attachment: int = 0
    emptied: bool = False


class Ancestor(NamedTuple):
    """A partitioned table that a table has become a partition of."""

    oid: int
    namespace: int
    name: TableName


@dataclass(frozen=True, slots=True)
class WatchedTable:
    """A table that exists. `followed`: as for a partition. `ancestors`: the tables of which it is itself a partition,
    the root first."""

    oid: int
    name: TableName
    namespace: Namespace
    partitioned: bool
    identity: ReplicaIdentity
    columns: tuple[WatchedColumn, ...] = ()
    leaves: tuple[WatchedLeaf, ...] = ()
    ancestors: tuple[Ancestor, ...] = ()
    file: int = 0
    followed: bool = True

    @property
    def unfollowed(self) -> list[TableName]:
        """The table and its partitions, as far as their changes are not in the WAL."""
        leaves = [leaf.name for leaf in self.leaves if not leaf.followed]
        return leaves if self.followed else [self.name, *leaves]

    def storage(self, columns: Collection[str]) -> Storage:
        """The files of its rows, and the transactions by which these of its columns were altered."""
        files = {leaf.oid: leaf.file for leaf in self.leaves} if self.partitioned else {self.oid: self.file}
        return Storage(files, {one.name: one.altered for one in self.columns if one.name in columns})

    def described(self, share: Share) -> PublishedDescription:
        """The table as a publication sends it."""
        columns = {one.name: one.form for one in self.columns if share.sends(one.form.number, one.generated)}
        key = frozenset(self.identity.key)
        known = key if columns.keys() >= key else frozenset[str]()
        told = frozenset(columns) if self.identity.identity == "full" else known
        return PublishedDescription(columns, self.identity.identity, told, known)


@dataclass(frozen=True, slots=True)
class WatchedSource:
    """One snapshot of the catalog: the publications that exist, the tables by OID, and, by OID, the types of their
    columns that are not built in."""

    publications: tuple[Publication, ...]
    tables: Mapping[int, WatchedTable]
    types: Mapping[int, PgType] = field(default_factory=dict)

    def publication(self, oid: int) -> Publication:
        return next(publication for publication in self.publications if publication.oid == oid)

    def share(self, table: WatchedTable) -> Share | None:
        """What is sent of the table; None if nothing."""
        shares = (one.share(table.oid, table.namespace) for one in self.publications)
        return next((share for share in shares if share is not None), None)

    def sent_as(self, table: WatchedTable) -> TableName | None:
        """The other name under which the table's changes are sent: that of a table of which it is a partition. None if
        there is none."""
        roots = (one for one in self.publications if one.via_root)
        found = (
            each.name
            for one in roots
            for each in table.ancestors
            if one.share(each.oid, Namespace(each.namespace)) is not None
        )
        return next(found, None)

    def sender(self, table: WatchedTable) -> Sender | None:
        """The pg_publication row of the publication that sends the table."""
        share = self.share(table)
        return None if share is None else self.publication(share.publication).row

    def has(self, name: TableName) -> bool:
        """Whether there is a table of this name, whatever its OID."""
        return any(table.name == name for table in self.tables.values())


def read_watched(
    connection: Connection, publications: Sequence[str], oids: Iterable[int], names: Iterable[TableName]
) -> WatchedSource:
    """The named publications, and the tables that have one of these OIDs or of these names, in one snapshot."""
    wanted = list(names)
    arguments = [list(oids), [name.schema for name in wanted], [name.name for name in wanted]]
    with server_errors("The tables that are followed could not be looked at"), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        rows = connection.execute(_TABLES, arguments).fetchall()
        found = read_publications(connection, publications)
        oids = [row[0] for row in rows]
        columns = _read_columns(connection, oids)
        leaves = connection.execute(
            _LEAVES, [[oid for oid, _, _, _, _, partitioned, *_ in rows if partitioned]]
        ).fetchall()
        made = {one.form.type for each in columns.values() for one in each if one.form.type >= FIRST_OF_USERS}
        types = read_types(connection, made) if made else {}
        identities = read_identities(connection, [*oids, *(leaf for _, leaf, *_ in leaves)])
        above = connection.execute(_ANCESTORS, [oids]).fetchall()
    parts: defaultdict[int, list[WatchedLeaf]] = defaultdict(list)
    for root, leaf, schema, name, *rest in leaves:
        parts[root].append(WatchedLeaf(TableName(schema, name), identities[leaf], leaf, *rest))
    ancestors: defaultdict[int, list[Ancestor]] = defaultdict(list)
    for table, oid, namespace, schema, name in above:
        ancestors[table].append(Ancestor(oid, namespace, TableName(schema, name)))
    tables = (
        WatchedTable(
            oid,
            TableName(schema, name),
            Namespace(namespace, entered),
            partitioned,
            identities[oid],
            tuple(columns[oid]),
            tuple(parts[oid]),
            tuple(ancestors[oid]),
            *rest,
        )
        for oid, namespace, entered, schema, name, partitioned, *rest in rows
    )
    return WatchedSource(found, {table.oid: table for table in tables}, types)


def _read_columns(connection: Connection, oids: Sequence[int]) -> Mapping[int, Sequence[WatchedColumn]]:
    found: defaultdict[int, list[WatchedColumn]] = defaultdict(list)
    for oid, number, name, type_oid, modifier, *rest in connection.execute(_COLUMNS, [oids]):
        found[oid].append(WatchedColumn(name, ColumnForm(type_oid, modifier, number), *rest))
    return found


_TABLES = f"""
select c.oid, n.oid, coalesce({ENTERED_NAMESPACE}, 0), n.nspname, c.relname, c.relkind = 'p', c.relfilenode::int8,
       c.relkind = 'p' or c.relpersistence = 'p'
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.oid = any(%s::oid[])
or c.relkind in ('r', 'p') and (n.nspname::text, c.relname::text) in (select * from unnest(%s::text[], %s::text[]))
"""

_COLUMNS = """
select a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attgenerated::text, a.xmin::text::int8,
       coalesce(d.oid, 0)::int8
from pg_attribute a
left join pg_attrdef d on a.attgenerated <> '' and d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = any(%s::oid[]) and a.attnum > 0 and not a.attisdropped
order by a.attrelid, a.attnum
"""

_ANCESTORS = """
select t.oid, c.oid, n.oid, n.nspname, c.relname
from pg_class t
cross join lateral pg_partition_ancestors(t.oid) with ordinality as a(relid, place)
join pg_class c on c.oid = a.relid
join pg_namespace n on n.oid = c.relnamespace
where t.oid = any(%s::oid[]) and t.relispartition and c.oid <> t.oid
order by t.oid, a.place desc
"""

# Sizes are not read, because that would wait for a session that alters a partition. The pg_attribute row of a system
# column is as old as its table, and those of the others are written anew by the very command that attaches it.
_LEAVES = """
with recursive tree(root, oid, attached, attachment) as (
    select t.oid, t.oid, false, 0::int8 from unnest(%s::oid[]) as t(oid)
    union all
    select tree.root, i.inhrelid, tree.attached or i.xmin <> (
        select a.xmin from pg_attribute a where a.attrelid = i.inhrelid and a.attname = 'tableoid')
        or exists (select from pg_attribute a where a.attrelid = i.inhrelid and a.attnum > 0
                   and a.xmin = i.xmin and a.cmin = i.cmin),
        tree.attachment + i.xmin::text::int8
    from tree join pg_inherits i on i.inhparent = tree.oid and not i.inhdetachpending
)
select tree.root, c.oid, n.nspname, c.relname, c.relfilenode::int8, tree.attached,
       c.relkind = 'r' and c.relpersistence = 'p', tree.attachment, c.reltuples < 0
from tree
join pg_class c on c.oid = tree.oid
join pg_namespace n on n.oid = c.relnamespace
where c.relkind <> 'p'
order by n.nspname, c.relname
"""
