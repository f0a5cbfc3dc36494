"""The relations in the source's database, their replica identities, their leaves, and their columns' types."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from airflow_provider_pgetl.engine.model.tables import Identity, PgType, TableName, TypeKind
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors

RelationKind = Literal["table", "partitioned table", "view", "materialized view", "foreign table"]
Persistence = Literal["permanent", "unlogged", "temporary"]

_KINDS: Mapping[str, RelationKind] = {
    "r": "table",
    "p": "partitioned table",
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
}
_PERSISTENCE: Mapping[str, Persistence] = {"p": "permanent", "u": "unlogged", "t": "temporary"}


@dataclass(frozen=True, slots=True)
class SourceRelation:
    """A relation. `root` is set for a partition: the table at the top of its tree."""

    name: TableName
    oid: int
    kind: RelationKind = "table"
    persistence: Persistence = "permanent"
    root: TableName | None = None

    @property
    def replicable(self) -> bool:
        """Whether it is a table that logical replication can follow, by itself and not as part of another."""
        follows = self.kind in ("table", "partitioned table") and self.persistence == "permanent"
        return follows and self.root is None

    @property
    def description(self) -> str:
        if self.persistence != "permanent":
            return f"{self.persistence} {self.kind}"
        return self.kind


def read_relations(connection: Connection) -> tuple[SourceRelation, ...]:
    """All tables, views and foreign tables, except those of the system."""
    with server_errors("The source's tables could not be listed"):
        rows = connection.execute(_RELATIONS).fetchall()
    return tuple(
        SourceRelation(
            TableName(schema, name),
            oid,
            _KINDS[kind],
            _PERSISTENCE[persistence],
            None if root_name is None else TableName(root_schema, root_name),
        )
        for schema, name, oid, kind, persistence, root_schema, root_name in rows
    )


_RELATIONS = """
select n.nspname, c.relname, c.oid, c.relkind::text, c.relpersistence::text, rn.nspname, r.relname
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
left join pg_class r on c.relispartition and r.oid = pg_partition_root(c.oid)
left join pg_namespace rn on rn.oid = r.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f')
and n.nspname <> 'information_schema' and n.nspname !~ '^pg_'
order by n.nspname, c.relname
"""


# -- The replica identity, by which the source identifies a row in its WAL. --------------------------------------------
#
# Only a unique, valid index that is checked immediately counts: PostgreSQL itself does not accept a deferrable primary
# key as replica identity, and neither could a destination, which may see two rows with the same key within a
# transaction.

_IDENTITIES: Mapping[str, Identity] = {"d": "default", "i": "index", "f": "full", "n": "nothing"}


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """A table's replica identity as it is declared, with the columns of the index behind it and of the primary key.

    `index` is empty if the identity needs no index or the index is missing; `primary` is empty if there is no usable
    key.
    """

    identity: Identity
    index: tuple[str, ...] = ()
    primary: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether UPDATE and DELETE succeed at the source while the table is published with them."""
        return self.identity == "full" or bool(self.index)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which a destination identifies a row; empty where only all values together identify it."""
        return self.primary if self.identity == "full" else self.index


def read_identities(connection: Connection, tables: Sequence[int]) -> Mapping[int, ReplicaIdentity]:
    """The replica identity of each table, by OID, as the connection's snapshot sees it."""
    with server_errors("Replica identities could not be read"):
        rows = connection.execute(_IDENTITY_QUERY, [list(tables)] * 2).fetchall()
    return {
        oid: ReplicaIdentity(_IDENTITIES[identity], _index(identity, primary, index), tuple(primary or ()))
        for oid, identity, primary, index in rows
    }


def _index(identity: str, primary: list[str] | None, index: list[str] | None) -> tuple[str, ...]:
    return tuple({"d": primary, "i": index}.get(identity) or ())


_IDENTITY_QUERY = """
with keys as (
    select i.indrelid, i.indisprimary, i.indisreplident,
           (select array_agg(a.attname::text order by k.place)
            from unnest(i.indkey::int2[]) with ordinality as k(number, place)
            join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
            where k.place <= i.indnkeyatts) as columns
    from pg_index i
    where i.indrelid = any(%s::oid[]) and i.indisunique and i.indisvalid and i.indimmediate
)
select c.oid, c.relreplident::text, p.columns, r.columns
from pg_class c
left join keys p on p.indrelid = c.oid and p.indisprimary
left join keys r on r.indrelid = c.oid and r.indisreplident
where c.oid = any(%s::oid[])
"""


# -- The tables that hold the rows: a plain table is its own only leaf, a partitioned one has those below it. ----------
#
# What is read of pg_class comes from the connection's snapshot; only sizes are the present ones. So `filenode` is the
# file that holds the *snapshot's* rows, even if the table was rewritten since.


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table with rows. `blocks` is the number of blocks of its heap alone; `size` is the heap's with its TOAST
    table's, in bytes."""

    name: TableName
    oid: int
    filenode: int
    blocks: int
    size: int
    followed: bool = True
    """Whether its changes are in the WAL: a foreign or unlogged leaf's are not."""
    attachment: int = 0
    """Changes when the leaf, or a partition that it is part of, is attached again; 0 if it is not a partition."""


def read_leaves(connection: Connection, roots: Sequence[int]) -> Mapping[int, tuple[Leaf, ...]]:
    """The leaves below each root, by the root's OID. A partition that is being detached is not included."""
    found: defaultdict[int, list[Leaf]] = defaultdict(list)
    with server_errors("Partitions could not be read"):
        for root, schema, name, *rest in connection.execute(_LEAVES, [list(roots)]):
            found[root].append(Leaf(TableName(schema, name), *rest))
    return {root: tuple(found[root]) for root in roots}


_LEAVES = """
with recursive tree(root, oid, attachment) as (
    select t.oid, t.oid, 0::int8 from unnest(%s::oid[]) as t(oid)
    union all
    select tree.root, i.inhrelid, tree.attachment + i.xmin::text::int8
    from tree
    join pg_class p on p.oid = tree.oid and p.relkind = 'p'
    join pg_inherits i on i.inhparent = tree.oid and not i.inhdetachpending
)
select tree.root, n.nspname, c.relname, c.oid, c.relfilenode::int8,
       coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int8,
       coalesce(pg_relation_size(c.oid), 0)
       + coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0),
       c.relkind = 'r' and c.relpersistence = 'p', tree.attachment
from tree
join pg_class c on c.oid = tree.oid
join pg_namespace n on n.oid = c.relnamespace
where c.relkind <> 'p'
order by n.nspname, c.relname
"""


# -- Types of the source, with the types that they are made of. --------------------------------------------------------
#
# Types are read level by level: a domain's base, an array's element, a range's subtype, a composite's fields. The
# levels end, because Postgres lets no type contain itself. Names come from format_type() under a search path of
# pg_catalog, so that only built-in types are unqualified.

_TYPE_KINDS: Mapping[str, TypeKind] = {
    "b": "base",
    "c": "composite",
    "d": "domain",
    "e": "enum",
    "r": "range",
    "m": "multirange",
    "p": "base",
}


@dataclass(frozen=True, slots=True)
class _Part:
    """A type used inside another: its OID, and its spelling there."""

    oid: int
    sql_type: str


@dataclass(frozen=True, slots=True)
class _TypeRow:
    """A type as the catalog has it, with its parts by OID."""

    type: PgType
    inner: _Part | None
    fields: tuple[tuple[str, _Part], ...]

    @property
    def parts(self) -> tuple[int, ...]:
        inner = (self.inner.oid,) if self.inner else ()
        return inner + tuple(part.oid for _, part in self.fields)


def read_types(connection: Connection, oids: Iterable[int]) -> Mapping[int, PgType]:
    """The types with these OIDs, with all their parts."""
    rows: dict[int, _TypeRow] = {}
    wanted = frozenset(oids)
    with server_errors("Types could not be read"):
        while wanted:
            found = [_row(*fetched) for fetched in connection.execute(_TYPES, [list(wanted)])]
            rows |= {row.type.oid: row for row in found}
            wanted = frozenset(part for row in found for part in row.parts) - rows.keys()
    known: dict[int, PgType] = {}
    for oid in rows:
        _assemble(oid, rows, known)
    return known


def _row(
    oid: int,
    name: str,
    kind: str,
    is_array: bool,
    sendable: bool,
    extension: str | None,
    inner: int | None,
    inner_sql: str | None,
    labels: list[str],
    fields: list[tuple[str, int, str]],
    numbers: list[int],
    since: int,
) -> _TypeRow:
    pg_type = PgType(
        oid,
        name,
        "array" if is_array else _TYPE_KINDS[kind],
        labels=tuple(labels),
        extension=extension,
        sendable=sendable,
        numbers=tuple(numbers),
        since=since,
    )
    part = _Part(inner, inner_sql or "") if inner else None
    return _TypeRow(pg_type, part, tuple((field, _Part(of, sql)) for field, of, sql in fields))


def _assemble(oid: int, rows: Mapping[int, _TypeRow], known: dict[int, PgType]) -> PgType:
    if oid in known:
        return known[oid]
    row = rows[oid]
    inner = _used(row.inner, rows, known) if row.inner else None
    fields = tuple((name, _used(part, rows, known)) for name, part in row.fields)
    parts = [*([inner] if inner else []), *(part for _, part in fields)]
    sendable = row.type.sendable and all(part.sendable for part in parts)
    known[oid] = replace(row.type, inner=inner, fields=fields, sendable=sendable)
    return known[oid]


def _used(part: _Part, rows: Mapping[int, _TypeRow], known: dict[int, PgType]) -> PgType:
    """The part's type; with its spelling where that says more than the name, as ``numeric(10,2)`` does."""
    pg_type = _assemble(part.oid, rows, known)
    return pg_type if part.sql_type == pg_type.name else replace(pg_type, sql_type=part.sql_type)


# A type is an array if it is *the* array type of its element: int2vector and point have elements, too. The binary form
# of an empty int2vector or oidvector is refused by its own input function. An interval may be infinite since version
# 17; earlier versions read the same bytes as a number of years.
_TYPES = """
select t.oid, format_type(t.oid, -1), t.typtype::text, e.oid is not null,
       t.typsend <> 0 and t.oid not in ('int2vector'::regtype, 'oidvector'::regtype), x.extname::text,
       coalesce(e.oid, nullif(t.typbasetype, 0), r.rngsubtype),
       format_type(coalesce(e.oid, nullif(t.typbasetype, 0), r.rngsubtype),
                   case when t.typtype = 'd' then t.typtypmod else -1 end),
       array(select l.enumlabel::text from pg_enum l where l.enumtypid = t.oid order by l.enumsortorder),
       coalesce((select jsonb_agg(jsonb_build_array(a.attname, a.atttypid::int8, format_type(a.atttypid, a.atttypmod))
                                  order by a.attnum)
                 from pg_attribute a
                 where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped),
                '[]'),
       case t.typtype
       when 'e' then array(select l.oid::int8 from pg_enum l where l.enumtypid = t.oid order by l.enumsortorder)
       else array(select a.attnum::int8 from pg_attribute a
                  where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
                  order by a.attnum) end,
       case when t.oid = 'interval'::regtype and current_setting('server_version_num')::int >= 170000
            then 17 else 0 end
from pg_type t
left join pg_type e on e.oid = t.typelem and e.typarray = t.oid
left join pg_range r on t.oid in (r.rngtypid, r.rngmultitypid)
left join pg_depend d on d.classid = 'pg_type'::regclass and d.objid = t.oid and d.deptype = 'e'
                     and d.refclassid = 'pg_extension'::regclass
left join pg_extension x on x.oid = d.refobjid
where t.oid = any(%s::oid[])
"""
