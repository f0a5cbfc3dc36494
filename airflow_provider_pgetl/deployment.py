"""Which Airflow this is, as the owner of a pipeline says it: two that run the same DAG files, on one source, are told
apart by it.

It is what ``[pgetl] deployment`` says (``AIRFLOW__PGETL__DEPLOYMENT``), else the host and path of ``[api] base_url``.
An address of this machine alone tells nothing, and neither does one that is not configured: then it is unknown, and
unknown deployments are taken for the same.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import conf

_HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


def deployment() -> str:
    """Empty where it is not known."""
    said = conf.get("pgetl", "deployment", fallback=None)
    return str(said) if said else place_of(conf.get("api", "base_url", fallback=None) or "")


def team_of(dag_id: str) -> str | None:
    """Whose connections a DAG may use beside everybody's. Asks Airflow's database, so not for tasks or triggers."""
    if not conf.getboolean("core", "multi_team", fallback=False):
        return None
    from airflow.models.dag import DagModel

    team: str | None = DagModel.get_team_name(dag_id)
    return team


def place_of(base_url: str) -> str:
    """Host, port and path."""
    parts = urlsplit(base_url)
    if parts.hostname is None or parts.hostname in _HERE:
        return ""
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
