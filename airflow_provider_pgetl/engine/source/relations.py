"""What lies in the source's database that somebody could mean by a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.tables import TableName

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
class Relation:
    """A relation by name. `root` is set for a partition: the table at the top of its tree."""

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


def read_relations(connection: Connection) -> tuple[Relation, ...]:
    """Every table and what looks like one, but for the system's own."""
    with server_errors("The source's tables could not be listed"):
        rows = connection.execute(_RELATIONS).fetchall()
    return tuple(
        Relation(
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
