"""Tables as the publication sends them, read inside a snapshot.

A copy and the stream that follows it must have the same columns, so both take them from here: from pg_publication_rel
*in the snapshot* (the view pg_publication_tables shows the present). The columns are those that pgoutput sends, in the
order in which it sends them.

Expressions and type names are not those of the snapshot, because PostgreSQL offers no way: they are printed as of now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import Column, GeneratedColumn, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.postgres.sessions import LOCALE
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.source.drift import alike, tells_key
from airflow_provider_pgetl.engine.source.matching import Candidate
from airflow_provider_pgetl.engine.source.published import (
    ENTERED_NAMESPACE,
    Namespace,
    Publication,
    Share,
    read_publications,
)
from airflow_provider_pgetl.engine.source.relations import (
    Leaf,
    ReplicaIdentity,
    read_identities,
    read_leaves,
    read_types,
)


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table with what the copy needs to know of it.

    `membership` is that of its `Share`. `row_filter` is SQL over the table's columns. `unread`: columns that were
    left out of `schema`, because no row of the table has come since they were added.
    """

    schema: TableSchema
    publication: int
    membership: int | None
    row_filter: str | None
    leaves: tuple[Leaf, ...]
    unread: tuple[str, ...] = ()

    @property
    def table(self) -> TableName:
        return self.schema.table

    @property
    def size(self) -> int:
        return sum(leaf.size for leaf in self.leaves)


@dataclass(frozen=True, slots=True)
class _CatalogTable:
    name: TableName
    oid: int
    namespace: Namespace
    comment: str | None
    attributes: int


@dataclass(frozen=True, slots=True)
class _Attribute:
    number: int
    name: str
    type: int
    sql_type: str
    modifier: int
    not_null: bool
    generated: str
    identity: Literal["", "a", "d"]
    comment: str | None
    altered: int


@dataclass(frozen=True, slots=True)
class _Expression:
    sql: str
    oid: int
    locale: str


def read_tables(
    connection: Connection, publications: Sequence[str], tables: Sequence[TableName]
) -> tuple[PublishedTable, ...]:
    """The tables, in the order given. Raises if one does not exist, or is not published."""
    present = _read_present(connection, tables)
    published = read_publications(connection, publications)
    oids = [table.oid for table in present]
    leaves = read_leaves(connection, oids)
    identities = read_identities(connection, [*oids, *(leaf.oid for several in leaves.values() for leaf in several)])
    attributes = _read_attributes(connection, oids)
    expressions = _read_expressions(connection, leaves)
    types = read_types(connection, {one.type for several in attributes.values() for one in several})
    found = tuple(
        _published_table(
            table,
            *_share(table, published),
            identities[table.oid],
            attributes[table.oid],
            expressions[table.oid],
            types,
            leaves,
        )
        for table in present
    )
    for table in found:
        _expect_followed(table)
        _expect_leaves_alike(table, identities)
    return found


def _expect_followed(table: PublishedTable) -> None:
    """Raises if changes of a leaf are not in the WAL. A partition may have become unlogged or foreign after the
    preflight."""
    for leaf in table.leaves:
        if not leaf.followed:
            raise PgetlError(
                ErrorKind.SCHEMA,
                f"{leaf.name}, part of {table.table}, is unlogged or foreign: the WAL has no changes of it.",
                remedy="Make it a logged table, or detach it; then roll the table back.",
                table=str(table.table),
            )


def _expect_leaves_alike(table: PublishedTable, identities: Mapping[int, ReplicaIdentity]) -> None:
    """Raises if a leaf's replica identity does not include the key. The stream shows that a partition's identity
    changes, but not what it was before."""
    for leaf in table.leaves:
        identity = identities[leaf.oid]
        if not tells_key(identity.identity, identity.index, table.schema):
            raise PgetlError(
                ErrorKind.UNKNOWN_ROW,
                f"The replica identity of {leaf.name}, a partition of {table.table}, is another than that of "
                f"{table.table}: its updates and deletes would not say which row they are about.",
                remedy=f"{alike(leaf.name)}, then roll the table back.",
                table=str(table.table),
            )


def read_declared(
    connection: Connection, candidates: Sequence[Candidate], *, stored_are_sent: bool
) -> Mapping[TableName, TableSchema]:
    """The tables as a publication would send them; the publication need not exist yet. `stored_are_sent`: generated
    columns that are stored are sent as well."""
    oids = [candidate.match.relation.oid for candidate in candidates]
    attributes = _read_attributes(connection, oids)
    types = read_types(connection, {one.type for several in attributes.values() for one in several})
    sent = {"", "s"} if stored_are_sent else {""}
    return {one.table: _declared(one, attributes[one.match.relation.oid], types, sent) for one in candidates}


def read_columns(connection: Connection, oid: int) -> tuple[Column, ...]:
    """All columns of one table, whether they are sent or not."""
    attributes = _read_attributes(connection, [oid])[oid]
    types = read_types(connection, {one.type for one in attributes})
    return tuple(_column(one, types[one.type]) for one in attributes)


def _declared(
    candidate: Candidate, attributes: Sequence[_Attribute], types: Mapping[int, PgType], sent: Set[str]
) -> TableSchema:
    wanted = candidate.match.spec.columns
    columns = tuple(
        _column(one, types[one.type])
        for one in attributes
        if one.generated in sent and (not wanted or one.name in wanted)
    )
    names = {column.name for column in columns}
    key = candidate.identity.key if names.issuperset(candidate.identity.key) else ()
    return TableSchema(candidate.table, candidate.match.relation.oid, columns, key, candidate.identity.identity)


def _published_table(
    table: _CatalogTable,
    publication: Publication,
    share: Share,
    identity: ReplicaIdentity,
    attributes: Sequence[_Attribute],
    expressions: Mapping[str, _Expression],
    types: Mapping[int, PgType],
    leaves: Mapping[int, tuple[Leaf, ...]],
) -> PublishedTable:
    columns = tuple(_column(one, types[one.type]) for one in attributes if share.sends(one.number, one.generated))
    names = frozenset(column.name for column in columns)
    key = identity.key if names.issuperset(identity.key) else ()
    generated = tuple(
        GeneratedColumn(_column(one, types[one.type]), found.sql, found.oid, found.locale)
        for one in attributes
        if share.leaves_to_compute(one.number, one.generated) and (found := expressions.get(one.name)) is not None
    )
    files = tuple((leaf.oid, leaf.filenode) for leaf in leaves[table.oid])
    attachments = tuple((leaf.oid, leaf.attachment) for leaf in leaves[table.oid] if leaf.attachment)
    schema = TableSchema(
        table.name,
        table.oid,
        columns,
        key,
        identity.identity,
        table.comment,
        generated,
        files,
        attachments,
        publication.row,
        attributes=table.attributes,
    )
    return PublishedTable(schema, share.publication, share.membership, share.row_filter, leaves[table.oid])


def _column(attribute: _Attribute, pg_type: PgType) -> Column:
    return Column(
        attribute.name,
        pg_type,
        attribute.sql_type,
        attribute.modifier,
        attribute.not_null,
        bool(attribute.generated),
        attribute.identity,
        attribute.comment,
        attribute.number,
        attribute.altered,
    )


def _share(table: _CatalogTable, publications: Sequence[Publication]) -> tuple[Publication, Share]:
    for publication in publications:
        share = publication.share(table.oid, table.namespace)
        if share is not None:
            return publication, share
    names = " or ".join(publication.name for publication in publications) or "any publication"
    message = f"{table.name} is not in {names}."
    raise PgetlError(ErrorKind.SCHEMA, message, remedy="Add it to the publication.", table=str(table.name))


def _read_present(connection: Connection, tables: Sequence[TableName]) -> list[_CatalogTable]:
    with server_errors("Tables could not be read"):
        names = [[table.schema for table in tables], [table.name for table in tables]]
        rows = connection.execute(_TABLES, names).fetchall()
    found = {
        TableName(schema, name): _CatalogTable(
            TableName(schema, name), oid, Namespace(namespace, entered), comment, attributes
        )
        for schema, name, oid, namespace, entered, comment, attributes in rows
    }
    for table in tables:
        if table not in found:
            remedy = "Take it out of the declaration, or create it."
            raise PgetlError(ErrorKind.SCHEMA, f"{table} does not exist.", remedy=remedy, table=str(table))
    return [found[table] for table in tables]


def _read_attributes(connection: Connection, tables: Sequence[int]) -> Mapping[int, Sequence[_Attribute]]:
    found: dict[int, list[_Attribute]] = {oid: [] for oid in tables}
    with server_errors("Columns could not be read"):
        for table, *rest in connection.execute(_COLUMNS, [list(tables)]):
            found[table].append(_Attribute(*rest))
    return found


def _read_expressions(
    connection: Connection, leaves: Mapping[int, Sequence[Leaf]]
) -> Mapping[int, Mapping[str, _Expression]]:
    """The expressions of generated columns, by table and column; only those that are the same in all of a table's
    leaves."""
    with server_errors("Generated columns could not be read"):
        oids = [*leaves, *(leaf.oid for several in leaves.values() for leaf in several)]
        found: dict[int, dict[str, _Expression]] = {oid: {} for oid in oids}
        for oid, name, *rest in connection.execute(_EXPRESSIONS, [oids]):
            found[oid][name] = _Expression(*rest)
    return {
        root: {
            name: expression
            for name, expression in found[root].items()
            if all(name in found[leaf.oid] and found[leaf.oid][name].sql == expression.sql for leaf in several)
        }
        for root, several in leaves.items()
    }


_TABLES = f"""
select n.nspname, c.relname, c.oid, n.oid, coalesce({ENTERED_NAMESPACE}, 0), d.description, c.relnatts
from unnest(%s::text[], %s::text[]) as wanted(schema, name)
join pg_namespace n on n.nspname = wanted.schema
join pg_class c on c.relnamespace = n.oid and c.relname = wanted.name and c.relkind in ('r', 'p')
left join pg_description d on d.classoid = 'pg_class'::regclass and d.objoid = c.oid and d.objsubid = 0
"""

_COLUMNS = """
select a.attrelid, a.attnum, a.attname, a.atttypid, format_type(a.atttypid, a.atttypmod), a.atttypmod,
       a.attnotnull, a.attgenerated::text, a.attidentity::text, d.description, a.xmin::text::int8
from pg_attribute a
left join pg_description d
       on d.classoid = 'pg_class'::regclass and d.objoid = a.attrelid and d.objsubid = a.attnum
where a.attrelid = any(%s::oid[]) and a.attnum > 0 and not a.attisdropped
order by a.attrelid, a.attnum
"""

# A collation that a column declares is not that of the destination's column: 'of a column' equals no locale there.
_EXPRESSIONS = f"""
select a.attrelid, a.attname, pg_get_expr(d.adbin, d.adrelid), d.oid::int8,
       case when d.adbin::text ~ ':inputcollid (?!0 |100 )' then 'of a column'
            when d.adbin::text ~ ':inputcollid 100 ' then ({LOCALE}) else '' end
from pg_attribute a
join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = any(%s::oid[]) and a.attgenerated <> '' and not a.attisdropped
"""
