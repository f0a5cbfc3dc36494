"""Whether this server, with this role, can be a destination."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.findings import Finding
from airflow_provider_pgetl.engine.tables import quote_identifier

_OLDEST = 140000
_GRANTABLE = 150000
_FACTS = """
select current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(),
       current_setting('server_encoding'), current_user, current_database(),
       has_database_privilege(current_database(), 'CREATE'),
       coalesce(has_schema_privilege(to_regnamespace('pgetl'), 'USAGE'), false)
"""


def findings(session: Session) -> Iterator[Finding]:
    number, version, standby, encoding, role, database, may_create, has_metadata = session.rows(_FACTS)[0]
    if number < _OLDEST:
        yield Finding(f"The destination runs PostgreSQL {version}.", "Use version 14 or later.")
    if standby:
        yield Finding("The destination is a standby and cannot be written to.", "Point the URI at its primary.")
    if encoding != "UTF8":
        problem = f"The destination's encoding is {encoding}, which cannot hold every text."
        yield Finding(problem, "Use a database in UTF8.")
    if not may_create and not has_metadata:
        problem = (
            f"{role} may not create schemas in the destination's database {database}, where pgetl keeps its positions."
        )
        yield Finding(problem, f"GRANT CREATE ON DATABASE {quote_identifier(database)} TO {quote_identifier(role)}.")
    if not session.replica_role:
        yield _firing(role, number)


def _firing(role: str, number: int) -> Finding:
    """Not an error: where there is neither trigger nor foreign key, nothing is different."""
    problem = (
        f"{role} may not set session_replication_role: triggers and foreign keys of the destination's tables will fire."
    )
    grant = f"GRANT SET ON PARAMETER session_replication_role TO {quote_identifier(role)}."
    return Finding(problem, grant if number >= _GRANTABLE else "Connect as a superuser.", "warning")
