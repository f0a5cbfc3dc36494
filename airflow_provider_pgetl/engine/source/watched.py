"""What a running pipeline looks at again and again: its publications and tables, as the catalog has them now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.source.drift import ColumnForm, Description, Storage
from airflow_provider_pgetl.engine.source.identity import ReplicaIdentity, read_identities
from airflow_provider_pgetl.engine.source.published import (
    ENTERED_NAMESPACE,
    Namespace,
    Publication,
    Share,
    read_publications,
)
from airflow_provider_pgetl.engine.source.type_catalog import read_types
from airflow_provider_pgetl.engine.tables import FIRST_OF_USERS, PgType, Sender, TableName


@dataclass(frozen=True, slots=True)
class WatchedColumn:
    """`generation` is the OID of the expression behind a generated column; 0 of any other."""

    name: str
    form: ColumnForm
    generated: str
    altered: int = 0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class WatchedLeaf:
    """A partition that holds rows. `attached`: it was a table before it became a partition. `followed`: its changes are
    in the WAL, as those of a foreign or unlogged one are not. `attachment`: see `Leaf`. `emptied`: its file was begun
    empty and was not looked through since, as after TRUNCATE, and not after VACUUM FULL."""

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
    """A table that is there. `followed` as of a partition. `ancestors`: what it is itself a partition of, the root
    first."""

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
        """Itself, and its partitions, as far as the WAL does not have their changes."""
        leaves = [leaf.name for leaf in self.leaves if not leaf.followed]
        return leaves if self.followed else [self.name, *leaves]

    def storage(self, columns: Collection[str]) -> Storage:
        """Where its rows lie, and by which transactions these of its columns were altered."""
        files = {leaf.oid: leaf.file for leaf in self.leaves} if self.partitioned else {self.oid: self.file}
        return Storage(files, {one.name: one.altered for one in self.columns if one.name in columns})

    def described(self, share: Share) -> Description:
        """As a publication sends it."""
        columns = {one.name: one.form for one in self.columns if share.sends(one.form.number, one.generated)}
        key = frozenset(self.identity.key)
        known = key if columns.keys() >= key else frozenset[str]()
        told = frozenset(columns) if self.identity.identity == "full" else known
        return Description(columns, self.identity.identity, told, known)


@dataclass(frozen=True, slots=True)
class WatchedSource:
    """One picture of the catalog: the publications that exist, the tables by OID, and their columns' types, by OID,
    that are not built in."""

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
        """Under which other name the table's changes are sent: that of what it is a partition of."""
        roots = (one for one in self.publications if one.via_root)
        found = (
            each.name
            for one in roots
            for each in table.ancestors
            if one.share(each.oid, Namespace(each.namespace)) is not None
        )
        return next(found, None)

    def sender(self, table: WatchedTable) -> Sender | None:
        """The publication's row by which the table is sent."""
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

# Without sizes, which would wait for whoever alters a partition. The row of a system column is as old as its table, and
# those of the others are written anew by the very command that attaches it.
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
