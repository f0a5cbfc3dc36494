"""The description of this provider that Airflow reads by the entry point `apache_airflow_provider`."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl import __version__
from airflow_provider_pgetl.assets import SCHEME, SOURCE_SCHEME

_NAME = "pgetl"
_HOME = "airflow_provider_pgetl"
_POSTGRES = "https://www.postgresql.org/docs/current/logical-replication.html"
_DEPLOYMENT = {
    "description": (
        "What this Airflow is called as the owner of its pipelines. Where two Airflows run the same DAG files on one "
        "source, each needs a name of its own. By default the host and path of [api] base_url."
    ),
    "version_added": __version__,
    "type": "string",
    "example": "production",
    "default": None,
}
_CONNECTION_TYPE = {
    "connection-type": _NAME,
    "hook-class-name": f"{_HOME}.hooks.pgetl.PgetlHook",
    "hook-name": "Postgres, as a source of pgetl",
    "ui-field-behaviour": {"hidden-fields": [], "relabeling": {"schema": "Database"}, "placeholders": {}},
    "conn-fields": {
        "sslmode": {
            "label": "SSL mode",
            "description": "disable, allow, prefer (the default), require, verify-ca or verify-full",
            "schema": {"type": ["string", "null"]},
        },
        "sslrootcert": {
            "label": "SSL root certificate",
            "description": "A file on workers and triggerers, or `system`",
            "schema": {"type": ["string", "null"]},
        },
    },
}


def get_provider_info() -> dict[str, Any]:
    """Returns the provider's description.

    Connections are Airflow's own `postgres`, `spark` and `spark_connect`; `pgetl` is a `postgres` whose test is the
    preflight of a source. The plugin has an entry point of its own and is not named here: Airflow reads the plugins of
    a provider only where `[core] lazy_discover_providers` is off, and would then find it twice.
    """
    return {
        "package-name": "airflow-provider-pgetl",
        "name": _NAME,
        "description": "Replicate Postgres with Airflow and Spark: consistent copies, then changes, without a gap.",
        "versions": [__version__],
        "integrations": [{"integration-name": _NAME, "external-doc-url": _POSTGRES, "tags": ["software"]}],
        "connection-types": [_CONNECTION_TYPE],
        "config": {_NAME: {"description": "Of replications with pgetl.", "options": {"deployment": _DEPLOYMENT}}},
        "hooks": [_modules("hooks", "pgetl")],
        "operators": [_modules("operators", "prepare", "data_sync", "apply", "maintenance")],
        "sensors": [_modules("sensors", "pgetl", "arrival")],
        "triggers": [_modules("triggers", "pgetl")],
        "asset-uris": [_asset_uris(SCHEME, "replica"), _asset_uris(SOURCE_SCHEME, "source")],
        "extra-links": [f"{_HOME}.links.{link}" for link in ("SourceLink", "ReplicaLink", "StateLink")],
    }


def _asset_uris(scheme: str, what: str) -> dict[str, Any]:
    return {
        "schemes": [scheme],
        "handler": f"{_HOME}.assets.sanitize_{what}_uri",
        "factory": f"{_HOME}.assets.create_{what}_asset",
        "to_openlineage_converter": f"{_HOME}.assets.convert_{what}_to_openlineage",
    }


def _modules(package: str, *names: str) -> dict[str, Any]:
    return {"integration-name": _NAME, "python-modules": [f"{_HOME}.{package}.{name}" for name in names]}
