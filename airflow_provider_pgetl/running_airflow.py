"""What differs between releases of Airflow: the only module that asks which release is running.

Names that only moved from release to release (exceptions, `conf`) are imported from
`airflow.providers.common.compat.sdk`, which handles that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
