"""Publications as the catalog has them, and what each of them sends of a table: its share.

The queries read what the server's version has: column lists, row filters and schemas came with 15, generated columns
with 18.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_provider_pgetl.engine.model.tables import Sender, TableName
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors

COLUMN_LISTS_SINCE = 150000
GENERATED_COLUMNS_SINCE = 180000


class Namespace(NamedTuple):
    """The schema of a table, by its OID, and the transaction that moved the table there, or created it."""

    oid: int
    xmin: int = 0


# For the table `c` of a catalog query: no other column shows that the table was in another schema for a while.
ENTERED_NAMESPACE = """
(select d.xmin::text::int8 from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid
 and d.objsubid = 0 and d.refclassid = 'pg_namespace'::regclass and d.refobjid = c.relnamespace)
"""


@dataclass(frozen=True, slots=True)
class Member:
    """A table that was added to the publication by name.

    `columns` are the names in its column list, `numbers` their attribute numbers; both are None without a list.
    `filtered` are the columns to which the row filter refers.
    """

    membership: int
    relation: int
    table: TableName
    columns: tuple[str, ...] | None = None
    numbers: frozenset[int] | None = None
    row_filter: str | None = None
    filtered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """What a publication sends of one table.

    `membership` is another number when the table was removed and added again, or, if it is sent for its schema, was in
    another schema for a while; it is None where all tables are sent. `columns` are the attribute numbers of the table's
    column list, `names` their names; both are None without one.
    """

    publication: int
    membership: int | None
    columns: frozenset[int] | None
    row_filter: str | None
    generated: bool
    names: frozenset[str] | None = None

    def sends(self, number: int, generated: str) -> bool:
        """Whether the column with this attribute number is sent. A column list decides for all but virtual columns."""
        if generated == "v":
            return False
        if self.columns is not None:
            return number in self.columns
        return self.generated or not generated

    def leaves_to_compute(self, number: int, generated: str) -> bool:
        """Whether the column is generated, wanted, and not sent: it can then be computed from the others."""
        wanted = self.columns is None or number in self.columns
        return bool(generated) and wanted and not self.sends(number, generated)


_UNKNOWN = Sender(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication.

    `actions` are those of insert, update, delete and truncate that it sends. `schemas` maps the OIDs of the schemas
    whose tables it sends to the OIDs of the entries that say so: a schema that was removed and added again has another
    entry. `row` is written anew by ALTER PUBLICATION of its options, its owner or its name.
    """

    oid: int
    name: str
    owner: str
    owned: bool
    comment: str | None
    all_tables: bool
    via_root: bool
    generated: bool
    actions: frozenset[str]
    schemas: Mapping[int, int] = field(default_factory=dict)
    members: Mapping[int, Member] = field(default_factory=dict)
    row: Sender = _UNKNOWN

    def share(self, relation: int, namespace: Namespace) -> Share | None:
        """What it sends of a table; None if nothing. Lists and filters have no effect where all tables are sent."""
        member = self.members.get(relation)
        if self.all_tables:
            return Share(self.oid, member.membership if member else None, None, None, self.generated)
        if namespace.oid in self.schemas:
            return Share(self.oid, self.schemas[namespace.oid] + namespace.xmin, None, None, self.generated)
        if member is None:
            return None
        names = None if member.columns is None else frozenset(member.columns)
        return Share(self.oid, member.membership, member.numbers, member.row_filter, self.generated, names)


def read_publications(connection: Connection, names: Sequence[str]) -> tuple[Publication, ...]:
    """Those of the named publications that exist, in the order given."""
    version = connection.info.server_version
    with server_errors("Publications could not be read"):
        rows = connection.execute(_publication_query(version), [list(names)]).fetchall()
        found = {row[1]: row for row in rows}
        return tuple(_publication(connection, *found[name]) for name in names if name in found)


def _publication(
    connection: Connection,
    oid: int,
    name: str,
    owner: str,
    owned: bool,
    comment: str | None,
    all_tables: bool,
    via_root: bool,
    generated: bool,
    actions: list[str],
    schemas: list[list[int]],
    xmin: int,
    owner_oid: int,
) -> Publication:
    rows = connection.execute(_member_query(connection.info.server_version), [oid]).fetchall()
    members = {row[1]: _member(*row) for row in rows}
    sent = frozenset(action for action in actions if action)
    return Publication(
        oid,
        name,
        owner,
        owned,
        comment,
        all_tables,
        via_root,
        generated,
        sent,
        {pair[0]: pair[1] for pair in schemas},
        members,
        Sender(oid, xmin, owner_oid),
    )


def _member(
    membership: int,
    relation: int,
    schema: str,
    name: str,
    numbers: list[int] | None,
    columns: list[str] | None,
    row_filter: str | None,
    filtered: list[str] | None,
) -> Member:
    return Member(
        membership,
        relation,
        TableName(schema, name),
        None if columns is None else tuple(columns),
        None if numbers is None else frozenset(numbers),
        row_filter,
        tuple(filtered or ()),
    )


def _publication_query(version: int) -> str:
    generated = "p.pubgencols = 's'" if version >= GENERATED_COLUMNS_SINCE else "false"
    entries = "select array[s.pnnspid::int8, s.oid::int8] from pg_publication_namespace s where s.pnpubid = p.oid"
    return f"""
        select p.oid, p.pubname::text, pg_get_userbyid(p.pubowner)::text, pg_has_role(p.pubowner, 'USAGE'),
               obj_description(p.oid, 'pg_publication'), p.puballtables, p.pubviaroot, {generated},
               array[case when p.pubinsert then 'insert' end, case when p.pubupdate then 'update' end,
                     case when p.pubdelete then 'delete' end, case when p.pubtruncate then 'truncate' end],
               {f"array({entries})" if version >= COLUMN_LISTS_SINCE else "'{}'::int8[]"}, p.xmin::text::int8,
               p.pubowner::int8
        from pg_publication p
        where p.pubname = any(%s)
    """


def _member_query(version: int) -> str:
    # A filter is stored as a node tree; its columns are the tree's variables. Constants in it are printed as bytes.
    finer = """
        r.prattrs::int2[],
        case when r.prattrs is not null then array(
            select a.attname::text from unnest(r.prattrs::int2[]) with ordinality as l(number, place)
            join pg_attribute a on a.attrelid = r.prrelid and a.attnum = l.number order by l.place) end,
        pg_get_expr(r.prqual, r.prrelid),
        array(select a.attname::text from pg_attribute a where a.attrelid = r.prrelid and a.attnum in (
            select v[1]::int from regexp_matches(r.prqual::text, ':varattno (-?[0-9]+)', 'g') as v))
    """
    coarse = "null, null, null, null"
    return f"""
        select r.oid, r.prrelid, n.nspname, c.relname, {finer if version >= COLUMN_LISTS_SINCE else coarse}
        from pg_publication_rel r
        join pg_class c on c.oid = r.prrelid
        join pg_namespace n on n.oid = c.relnamespace
        where r.prpubid = %s
        order by n.nspname, c.relname
    """
