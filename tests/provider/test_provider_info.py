"""What Airflow reads of this provider, held to Airflow's own schema."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Iterator
from importlib import import_module, metadata
from importlib.resources import files

import jsonschema
import pytest

import airflow_provider_pgetl
from airflow_provider_pgetl import running_airflow
from airflow_provider_pgetl.provider_info import get_provider_info
from airflow_provider_pgetl.running_airflow import RELEASE

INFO = get_provider_info()


@pytest.mark.parametrize("name", ["provider_info.schema.json", "provider.yaml.schema.json"])
def test_it_fits_the_schema(name: str) -> None:
    schema = json.loads(files("airflow").joinpath(name).read_text())
    if name.startswith("provider."):
        schema = {**schema, "required": []}  # what is asked beyond this concerns Airflow's own repository
    jsonschema.validate(INFO, schema)


@pytest.mark.parametrize("kind", ["hooks", "operators", "sensors", "triggers"])
def test_every_module_named_is_there(kind: str) -> None:
    for room in INFO[kind]:
        for module in room["python-modules"]:
            assert import_module(module)


def test_every_trigger_is_named() -> None:
    from airflow_provider_pgetl import triggers
    from airflow_provider_pgetl.triggers.pgetl import PipelineTrigger

    for module in pkgutil.iter_modules(triggers.__path__, "airflow_provider_pgetl.triggers."):
        import_module(module.name)
    (room,) = INFO["triggers"]
    homes = set(_homes(PipelineTrigger))
    assert {home for home in homes if home.startswith(triggers.__name__)} == set(room["python-modules"])


def _homes(kind: type) -> Iterator[str]:
    """The modules of the classes that have no further ones below them."""
    below = kind.__subclasses__()
    if not below:
        yield kind.__module__
    for each in below:
        yield from _homes(each)


def test_connections_of_its_type_have_its_hook_and_a_form() -> None:
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    hook = manager.hooks["pgetl"]
    assert hook is not None
    assert hook.connection_testable
    assert (hook.hook_class_name, hook.connection_id_attribute_name) == (
        "airflow_provider_pgetl.hooks.pgetl.PgetlHook",
        "pgetl_conn_id",
    )
    if RELEASE >= (3, 2):  # 3.1 has no forms where Flask-AppBuilder is not installed
        assert {name for name in manager.connection_form_widgets if "pgetl" in name} == {
            "extra__pgetl__sslmode",
            "extra__pgetl__sslrootcert",
        }
        assert manager.field_behaviours["pgetl"]["relabeling"] == {"schema": "Database"}


def test_the_plugin_is_told_once() -> None:
    """By its entry point: where Airflow reads plugins of providers, too, a second one would be an error to it."""
    points = metadata.distribution("airflow-provider-pgetl").entry_points
    assert [each.name for each in points.select(group="airflow.plugins")] == ["pgetl"]
    assert "plugins" not in INFO


def test_every_link_named_is_there() -> None:
    for path in INFO["extra-links"]:
        module, _, name = path.rpartition(".")
        assert getattr(import_module(module), name)


def test_the_installed_package_offers_it() -> None:
    points = metadata.distribution("airflow-provider-pgetl").entry_points
    assert points.select(group="apache_airflow_provider")


def test_airflow_knows_the_settings_that_are_read() -> None:
    from airflow.configuration import conf
    from airflow.providers_manager import ProvidersManager

    configs = dict(ProvidersManager().provider_configs)
    assert set(configs["airflow-provider-pgetl"]["pgetl"]["options"]) == {"deployment"}
    assert conf.get("pgetl", "deployment", fallback=None) is None


# -- what differs between releases of Airflow; that each offers it is for `make matrix` to say -------------------------


def test_an_airflow_that_is_too_old_is_refused_when_a_dag_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_airflow, "RELEASE", (3, 0))
    with pytest.raises(ImportError, match=r"needs Airflow 3\.1 or newer, and this is Airflow 3\."):
        _ = airflow_provider_pgetl.ReplicationDag


def test_no_release_is_told_of_runs_that_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {}
    for release in ((3, 1), (3, 2), (3, 3)):
        monkeypatch.setattr(running_airflow, "RELEASE", release)
        told[release] = set(running_airflow.without_backfills().get("allowed_run_types", ()))
    assert told[3, 1] == set()
    assert told[3, 3] - told[3, 2] == {"operator_triggered"}
    assert "backfill" not in told[3, 2] | told[3, 3]
