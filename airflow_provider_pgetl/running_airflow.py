"""What the Airflow that runs offers, where its releases differ: the only place that asks which release it is.

What only stands elsewhere from release to release (exceptions, `conf`) comes from
`airflow.providers.common.compat.sdk`, which knows where.
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

# How much longer each pause before a retry is than the last: Airflow 3.1 doubles it, and knows only whether to.
BACKOFF: float = 2.0 if RELEASE >= (3, 2) else True


def refuse_an_older_one() -> None:
    """With a word of what is needed, instead of a name that is missing somewhere."""
    if RELEASE < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise ImportError(f"airflow-provider-pgetl needs Airflow {needed} or newer, and this is Airflow {__version__}.")


def without_backfills() -> Mapping[str, Any]:
    """The arguments of a DAG that has no backfills. Airflow 3.1 cannot be told: there they are left to `prepare`, which
    refuses them on every release."""
    if RELEASE < (3, 2):
        return {}
    newer = () if RELEASE < (3, 3) else ("operator_triggered",)
    return {"allowed_run_types": ("scheduled", "manual", "asset_triggered", "asset_materialization", *newer)}


def read_dags(place: Path, bundle: Any) -> Any:
    """What a file, or a folder, of an initialised bundle declares, read as Airflow reads it: a `BundleDagBag`."""
    if RELEASE < (3, 2):
        return import_module("airflow.models.dagbag").BundleDagBag(dag_folder=place, bundle_path=bundle.path)
    bag = import_module("airflow.dag_processing.dagbag").BundleDagBag
    return bag(dag_folder=place, bundle_path=bundle.path, bundle_name=bundle.name)


def async_callback() -> type[AsyncCallback]:
    """The class of what names a function or notifier to be called in the triggerer."""
    found: type[AsyncCallback] = import_module("airflow.sdk.definitions.deadline").AsyncCallback
    return found


def has_legacy_names() -> bool:
    """Whether metrics go out under names with their tags in them as well. Airflow 3.1 has no others of its own."""
    return bool(conf.getboolean("metrics", "legacy_names_on", fallback=True))


@cache
def stats() -> Any:
    """Where metrics go (`incr`, `gauge`), configured. Airflow does that itself in the processes of tasks, and in a
    triggerer for itself but not for triggers. The first use looks up a server's name, so not in an event loop."""
    found: Any = import_module("airflow.stats" if RELEASE < (3, 2) else "airflow.sdk.observability.stats")
    if RELEASE < (3, 2):
        return found.Stats  # which configures itself
    factory: Any = import_module("airflow.sdk.observability.metrics.stats_utils").get_stats_factory
    if RELEASE < (3, 3):
        found.Stats.initialize(factory=factory(found.Stats))
        return found.Stats
    found.initialize(factory=factory(), export_legacy_names=has_legacy_names())
    return found
