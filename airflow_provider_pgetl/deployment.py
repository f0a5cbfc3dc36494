"""The name of this Airflow as part of a pipeline's owner, which distinguishes two Airflows that run the same DAG files
on one source.

It is the option ``[pgetl] deployment`` (``AIRFLOW__PGETL__DEPLOYMENT``), else the host and path of ``[api] base_url``.
An address of the machine itself, such as localhost, identifies nothing, and neither does one that is not configured:
then the name is unknown, and unknown deployments are taken for the same.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import conf

_HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


def deployment() -> str:
    """Returns the name of this deployment; empty where it is not known."""
    said = conf.get("pgetl", "deployment", fallback=None)
    return str(said) if said else place_of(conf.get("api", "base_url", fallback=None) or "")


def team_of(dag_id: str) -> str | None:
    """Returns the team whose connections a DAG may use besides the shared ones. Reads Airflow's database, so it must
    not be called by tasks or triggers."""
    if not conf.getboolean("core", "multi_team", fallback=False):
        return None
    from airflow.models.dag import DagModel

    team: str | None = DagModel.get_team_name(dag_id)
    return team


def place_of(base_url: str) -> str:
    """Returns host, port and path of the URL; empty if that is an address of the machine itself."""
    parts = urlsplit(base_url)
    if parts.hostname is None or parts.hostname in _HERE:
        return ""
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
