"""Whether this server, with this role, can be a destination."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.errors import PgetlError

_OLDEST = 140000
_FACTS = """
select current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(),
       current_setting('server_encoding'), current_user, current_database(),
       has_database_privilege(current_database(), 'CREATE'),
       coalesce(has_schema_privilege(to_regnamespace('pgetl'), 'USAGE'), false)
"""


def findings(session: Session) -> list[str]:
    try:
        return list(_findings(session))
    except PgetlError as error:
        return [str(error)]


def _findings(session: Session) -> Iterator[str]:
    number, version, standby, encoding, role, database, may_create, has_metadata = session.rows(_FACTS)[0]
    if number < _OLDEST:
        yield f"The destination runs PostgreSQL {version}. Use version 14 or later."
    if standby:
        yield "The destination is a standby and cannot be written to. Point the URI at its primary."
    if encoding != "UTF8":
        yield f"The destination's encoding is {encoding}, which cannot hold every text. Use a database in UTF8."
    if not may_create and not has_metadata:
        yield (
            f"{role} may not create schemas in the destination's database {database}, where pgetl keeps its positions."
            f" GRANT CREATE ON DATABASE {database} TO {role}."
        )
    if not session.replica_role:
        yield (
            f"{role} may not set session_replication_role: triggers and foreign keys of the destination will fire."
            f" On 15 and later GRANT SET ON PARAMETER session_replication_role TO {role}; else use a superuser."
        )
