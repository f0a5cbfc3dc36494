"""By what the source identifies a row in its WAL.

Only a unique, valid index that is checked at once counts: Postgres itself takes no deferrable primary key for a
replica identity, and neither could a destination, which may see two rows share such a key within a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.tables import Identity

_IDENTITIES: Mapping[str, Identity] = {"d": "default", "i": "index", "f": "full", "n": "nothing"}


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """A table's replica identity as it is declared, with the columns of the index behind it and of the primary key.

    `index` is empty where the identity needs no index or the index is missing, `primary` where there is no usable key.
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
        """The columns by which a destination knows a row; empty where only all its values can tell."""
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
