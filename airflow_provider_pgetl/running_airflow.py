"""What is asked of the running Airflow: what differs between its releases, and the name of its deployment.

This is the only module that asks which release is running.

Names that only moved from release to release (exceptions, `conf`) are imported from
`airflow.providers.common.compat.sdk`, which handles that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow import __version__
from airflow.providers.common.compat.sdk import conf

if TYPE_CHECKING:
    from airflow.sdk.definitions.callback import AsyncCallback


OLDEST = (3, 1)
RELEASE = tuple(int(part) for part in __version__.split(".")[:2])

# The factor by which each pause before a retry is longer than the last: Airflow 3.1 doubles it, and takes only True or
# False.
BACKOFF: float = 2.0 if RELEASE >= (3, 2) else True


def refuse_an_older_one() -> None:
    """Raises `ImportError` that names the oldest supported release, instead of an error about some missing name."""
    if RELEASE < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise ImportError(f"airflow-provider-pgetl needs Airflow {needed} or newer, and this is Airflow {__version__}.")


def without_backfills() -> Mapping[str, Any]:
    """Returns the arguments of a DAG that refuse backfills. Airflow 3.1 has none; there `prepare` refuses them, as it
    does on every release."""
    if RELEASE < (3, 2):
        return {}
    newer = () if RELEASE < (3, 3) else ("operator_triggered",)
    return {"allowed_run_types": ("scheduled", "manual", "asset_triggered", "asset_materialization", *newer)}


def read_dags(place: Path, bundle: Any) -> Any:
    """Returns a `BundleDagBag` with what a file, or a folder, of an initialised bundle declares, read as Airflow reads
    it."""
    if RELEASE < (3, 2):
        return import_module("airflow.models.dagbag").BundleDagBag(dag_folder=place, bundle_path=bundle.path)
    bag = import_module("airflow.dag_processing.dagbag").BundleDagBag
    return bag(dag_folder=place, bundle_path=bundle.path, bundle_name=bundle.name)


def async_callback() -> type[AsyncCallback]:
    """Returns the class `AsyncCallback`, which names a function or notifier that is called in the triggerer."""
    found: type[AsyncCallback] = import_module("airflow.sdk.definitions.deadline").AsyncCallback
    return found


def has_legacy_names() -> bool:
    """Returns whether metrics are also sent under names that contain their tags. Airflow 3.1 itself sends metrics under
    such names only."""
    return bool(conf.getboolean("metrics", "legacy_names_on", fallback=True))


@cache
def stats() -> Any:
    """Returns the configured metrics client (`incr`, `gauge`). Airflow configures it in the processes of tasks; in a
    triggerer it does so for itself but not for triggers. The first use resolves a server's name, so it must not be in
    an event loop."""
    found: Any = import_module("airflow.stats" if RELEASE < (3, 2) else "airflow.sdk.observability.stats")
    if RELEASE < (3, 2):
        return found.Stats  # which configures itself
    factory: Any = import_module("airflow.sdk.observability.metrics.stats_utils").get_stats_factory
    if RELEASE < (3, 3):
        found.Stats.initialize(factory=factory(found.Stats))
        return found.Stats
    found.initialize(factory=factory(), export_legacy_names=has_legacy_names())
    return found


# -- The name of this Airflow as part of a pipeline's owner ------------------------------------------------------------
#
# It distinguishes two Airflows that run the same DAG files on one source.
#
# It is the option ``[pgetl] deployment`` (``AIRFLOW__PGETL__DEPLOYMENT``), else the host and path of ``[api]
# base_url``. An address of the machine itself, such as localhost, identifies nothing, and neither does one that is not
# configured: then the name is unknown, and unknown deployments are taken for the same.

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
