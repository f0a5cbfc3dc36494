"""Whether this server, with this role, can be a destination."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.findings import Finding
from airflow_provider_pgetl.engine.marks import Mark
from airflow_provider_pgetl.engine.synchronous import REMEDY, STANDBYS_MISSING, commits_wait
from airflow_provider_pgetl.engine.tables import TableName, quote_identifier

_OLDEST = 140000
_GRANTABLE = 150000
_NAME_BYTES = 63
_FACTS = """
select current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(),
       current_setting('server_encoding'), current_user, current_database(),
       has_database_privilege(current_database(), 'CREATE'),
       coalesce(has_schema_privilege(to_regnamespace('pgetl'), 'USAGE'), false)
"""

_HOLDS = """
select exists (
    select from pg_locks l join pg_database d on d.oid = l.database
    where d.datname = current_database() and l.locktype = 'advisory' and l.objsubid = 1 and l.granted
      and l.classid = ($1::int8 >> 32)::oid and l.objid = ($1::int8 & 4294967295)::oid)
"""
_IS_PRIMARY = """
select s.system_identifier::text = $1 and c.timeline_id = $2::int8
   and d.oid::int8 = $3::int8 and not pg_is_in_recovery()
from pg_control_system() s, pg_control_checkpoint() c, pg_database d where d.datname = current_database()
"""


def findings(session: Session) -> Iterator[Finding]:
    number, version, standby, encoding, role, database, may_create, has_metadata = session.rows(_FACTS)[0]
    if number < _OLDEST:
        yield Finding(f"The destination runs PostgreSQL {version}.", "Use version 14 or later.")
    if standby:
        yield Finding("The destination is a standby and cannot be written to.", "Point the URI at its primary.")
    if encoding != "UTF8":
        problem = f"The destination's encoding is {encoding}: a text that it cannot hold makes its table Errored."
        yield Finding(problem, "Use a database in UTF8.", "warning")
    if not may_create and not has_metadata:
        problem = (
            f"{role} may not create schemas in the destination's database {database}, where pgetl keeps its positions."
        )
        yield Finding(problem, f"GRANT CREATE ON DATABASE {quote_identifier(database)} TO {quote_identifier(role)}.")
    waits = session.rows(STANDBYS_MISSING)
    if waits and waits[0][0] > 0:
        yield Finding(commits_wait("the destination", waits[0][0]), REMEDY)
    if not session.replica_role:
        yield _firing(role, number)


def cut_names(tables: Collection[TableName]) -> Mapping[TableName, str]:
    """Those whose names the server would cut, and so take for those of other tables, of any pipeline."""
    return {
        table: f"{table} in the destination has a name of more than {_NAME_BYTES} bytes, which PostgreSQL cuts"
        for table in tables
        if max(len(table.schema.encode()), len(table.name.encode())) > _NAME_BYTES
    }


def bears(session: Session, mark: Mark) -> bool:
    """Whether the source's lock is seen here, or, of a standby, whether it is one of this server's."""
    if session.rows(_HOLDS, (str(mark.key),))[0][0]:
        return True
    if mark.primary is None:
        return False
    there = mark.primary
    return bool(session.rows(_IS_PRIMARY, (there.system, str(there.timeline), str(there.database)))[0][0])


def _firing(role: str, number: int) -> Finding:
    """Not an error: where there is neither trigger nor foreign key, nothing is different."""
    problem = (
        f"{role} may not set session_replication_role: triggers and foreign keys of the destination's tables will fire."
    )
    grant = f"GRANT SET ON PARAMETER session_replication_role TO {quote_identifier(role)}."
    return Finding(problem, grant if number >= _GRANTABLE else "Connect as a superuser.", "warning")
