"""The tables that hold the rows: a plain table is its own only leaf, a partitioned one has those below it.

What is read of pg_class comes from the connection's snapshot; sizes, and only they, from the present. So `filenode` is
the file in which the *snapshot's* rows lie, even if the table was rewritten since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.tables import TableName


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table with rows. `blocks` counts its heap alone; `size` is the heap's with its TOAST table's, in bytes."""

    name: TableName
    oid: int
    filenode: int
    blocks: int
    size: int
    followed: bool = True
    """Whether its changes are in the WAL: a foreign or unlogged leaf's are not."""
    attachment: int = 0
    """Another number when it, or a partition that it is part of, was attached again; 0 of what is no partition."""


def read_leaves(connection: Connection, roots: Sequence[int]) -> Mapping[int, tuple[Leaf, ...]]:
    """The leaves below each root, by the root's OID. A partition that is being detached belongs to it no more."""
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
