"""Servers whose commits wait for a synchronous standby.

Where fewer are connected than a commit waits for, every write hangs until one comes, and no timeout ends it: what
PostgreSQL offers is to give up the wait, which takes a commit for replicated that is not. So it is looked for before
anything is written. Only a role that may read all statistics sees which standbys are connected.
"""

from __future__ import annotations

STANDBYS_MISSING = """
select greatest(0, needed - (select count(*) from pg_stat_replication where sync_state in ('sync', 'quorum')))::int
from (select coalesce(substring(names from '^\\s*(?:FIRST\\s+|ANY\\s+)?(\\d+)\\s*\\(')::int, 1) as needed
      from (select current_setting('synchronous_standby_names') as names) as said
      where names <> '' and not pg_is_in_recovery()
        and current_setting('synchronous_commit') not in ('off', 'local')
        and pg_has_role('pg_read_all_stats', 'USAGE')) as waited_for
"""

REMEDY = "Bring the standby back, or take it out of synchronous_standby_names."


def commits_wait(place: str, missing: int) -> str:
    """The problem, told of the server at `place`."""
    return (
        f"Commits in {place} wait for a synchronous standby: synchronous_standby_names asks for {missing} more than "
        "are connected."
    )
