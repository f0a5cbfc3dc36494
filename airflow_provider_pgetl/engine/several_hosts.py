"""A URI with several hosts, of which one is the primary.

libpq takes the first that answers, unless `target_session_attrs` says which it is to be. A standby cannot be written
to, and does not have the primary's slots: what looks like a lost slot would be a session on the wrong host. So the
primary is meant where nothing else is said; and after a failover the next session is on the host that is the primary
then.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


def of_the_primary(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a connection, which may come from libpq's environment too."""
    hosts = str(given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST", ""))
    is_said = "target_session_attrs" in given or "PGTARGETSESSIONATTRS" in os.environ
    return {**given} if is_said or "," not in hosts else {**given, "target_session_attrs": "primary"}
