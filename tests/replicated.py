"""What a pipeline has left in its servers: the phases of its tables, slots, staging."""

from __future__ import annotations

import psycopg

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases

_SLOTS = "select slot_name::text from pg_replication_slots where database = %s"
_PHASES = """select t.table_schema || '.' || t.table_name, h.phase ->> 'phase'
             from pgetl.tables t join pgetl.history h using (pipeline, table_schema, table_name)
             where h.entry = t.current"""


class Replicated:
    """Mixed into what has a source, a destination and a state database."""

    databases: Databases
    state: Database

    @property
    def source(self) -> Database:
        return self.databases.source

    @property
    def destination(self) -> Database:
        return self.databases.destination

    def phases(self) -> dict[str, str]:
        """By table; empty before the first run."""
        try:
            return dict(self.state.execute(_PHASES))
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return {}

    @property
    def all_ready(self) -> bool:
        return set(self.phases().values()) == {"Ready"}

    def slots(self, which: str = "") -> list[str]:
        """The names of the pipeline's slots; `which` is a further condition."""
        found = self.source.execute(f"{_SLOTS} {which} order by 1", [self.source.name])
        return [name for (name,) in found]

    @property
    def streams(self) -> bool:
        return bool(self.slots("and active and slot_name like '%%_apply'"))

    def staged(self) -> list[str]:
        """What copies have staged in the destination."""
        statement = """select relname::text from pg_class
                       where relnamespace = to_regnamespace('pgetl_staging') and relkind = 'r'"""
        return [name for (name,) in self.destination.execute(statement)]
