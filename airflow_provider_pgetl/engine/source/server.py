"""What there is to know of the source's server and of our role on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors, worker_name
from airflow_provider_pgetl.engine.source.slot_names import SlotName
from airflow_provider_pgetl.engine.synchronous import STANDBYS_MISSING


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`used_slots` and `used_walsenders` are all but the pipeline's own. None where a version knows no such setting."""

    version: int
    used_slots: int
    role: str
    may_replicate: bool
    standby: bool
    wal_level: str
    max_slots: int
    max_walsenders: int
    used_walsenders: int
    slot_wal_megabytes: int
    slot_idle_seconds: int | None
    synchronized_standby_slots: str | None
    hot_standby_feedback: bool
    synchronous_standby_names: str
    standbys_missing: int
    unknown_standby_slots: str | None
    slots_are_synchronised: bool

    @property
    def major(self) -> int:
        return self.version // 10000

    @property
    def minor(self) -> int:
        return self.version % 10000


def read_server(connection: Connection, pipeline: str) -> ServerFacts:
    """Ask the server; nothing here needs a privilege."""
    with server_errors("The server's settings could not be read"):
        (row,) = connection.execute(_FACTS, [worker_name(pipeline, "")]).fetchall()
        slots = [name for (name,) in connection.execute("select slot_name::text from pg_replication_slots")]
    return ServerFacts(connection.info.server_version, _count_others(slots, pipeline), *row)


def _count_others(slots: Sequence[str], pipeline: str) -> int:
    parsed = [SlotName.parse(name) for name in slots]
    return sum(1 for name in parsed if name is None or name.pipeline != pipeline)


# pg_settings holds numbers in each setting's own unit, where current_setting() writes them with one.
_FACTS = f"""
select current_user::text,
       (select rolreplication or rolsuper from pg_roles where rolname = current_user)
       or exists (select from pg_roles where rolname = 'rds_replication' and pg_has_role(oid, 'MEMBER')),
       pg_is_in_recovery(),
       current_setting('wal_level'),
       current_setting('max_replication_slots')::int,
       current_setting('max_wal_senders')::int,
       (select count(*)::int from pg_stat_replication
        where not coalesce(starts_with(application_name, %s), false)),
       (select setting::int from pg_settings where name = 'max_slot_wal_keep_size'),
       (select setting::int from pg_settings where name = 'idle_replication_slot_timeout'),
       current_setting('synchronized_standby_slots', true),
       current_setting('hot_standby_feedback')::bool,
       current_setting('synchronous_standby_names'),
       coalesce(({STANDBYS_MISSING}), 0),
       (select string_agg(trim(name), ', ')
        from unnest(string_to_array(nullif(current_setting('synchronized_standby_slots', true), ''), ',')) as name
        where not exists (select from pg_replication_slots
                          where slot_name = trim(name) and slot_type = 'physical' and active)),
       exists (select from pg_stat_activity where application_name like '%%slotsync worker')
"""
