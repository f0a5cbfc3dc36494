"""Deploy mode `cluster`: the driver runs on the cluster too; only files and an exit code go between it and the task.

* The job goes along by ``--files``. So does, on YARN, what its references stand for, in a file of its own: never in
  arguments, and never in Spark's configuration, which anybody may see who sees the application. YARN keeps such files
  in folders of the submitting user, and removes them with the application.
* On Kubernetes files go through a store that nobody empties. There the driver must have its secrets from Kubernetes
  itself, as variables: ``--conf spark.kubernetes.driver.secretKeyRef.NAME=secret:key`` for each.
* What became of each table is in the pipeline's store, as always; of reports and figures nothing comes back.
* There is no life line. The driver ends because its attempt does, which lives in the store for as long as the task
  that has reserved it (`engine.sync.reserving`): it looks every few seconds, stops, and takes away what it staged.

Spark's standalone clusters run no Python driver, and one machine is no cluster: both are refused.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_pgetl.connections import DESTINATION, SOURCE, STATE, STORAGE
from airflow_provider_pgetl.engine.config import SparkSpec
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.sync.applications import COPY, Job
from airflow_provider_pgetl.engine.sync.submitting import Parcel, pack

CLUSTER = "cluster"
_SECRETS_FILE = "secrets.json"
_SECRET_KEY = "spark.kubernetes.driver.secretKeyRef"
_ONCE = {"spark.yarn.maxAppAttempts": "1"}  # the next attempt is the task's to make, under a number of its own
_ADDRESSES = (SOURCE, STATE, DESTINATION, STORAGE)
# The interpreter of this machine is not the cluster's.
_PYTHON = {"PYSPARK_PYTHON": "python3", "PYSPARK_DRIVER_PYTHON": "python3"}


@dataclass(frozen=True, slots=True)
class Shipment:
    """What spark-submit is to bring to the driver, and what that is called with; the environment of spark-submit."""

    parcel: Parcel
    files: tuple[Path, ...]
    arguments: tuple[str, ...]
    settings: Mapping[str, str]
    environment: Mapping[str, str]


def ship(job: Job, master: str, environment: Mapping[str, str]) -> Shipment:
    """What a driver here would be given, and on YARN the secrets beside it, which go when it goes."""
    names = sorted(set(_variables(job.as_json())))
    around = {**_PYTHON, **{key: value for key, value in environment.items() if key not in {*names, *_ADDRESSES}}}
    on_kubernetes = master.startswith("k8s://")
    if on_kubernetes:
        _require_secret_keys(job.spec.spark, names)
    parcel = pack(job, local=False)
    file = Path(parcel.arguments[0])
    if on_kubernetes:
        return Shipment(parcel, (file,), (file.name,), {}, around)
    secrets = parcel.folder / _SECRETS_FILE
    _write_private(secrets, json.dumps({name: environment[name] for name in names if name in environment}))
    return Shipment(parcel, (file, secrets), (file.name, "--secrets", secrets.name), _ONCE, around)


def _write_private(file: Path, text: str) -> None:
    file.touch(0o600, exist_ok=False)
    file.write_text(text, encoding="utf-8")


def refuse_impossible(application: str, master: str) -> None:
    """Where Spark would refuse it, and what has nothing but its output to say what came of it."""
    if application != COPY.name:
        raise PgetlError(
            ErrorKind.CONFIG,
            f"A {application} tells what came of it to whoever started it, which a driver on the cluster cannot.",
            remedy="Name a Spark connection without deploy mode cluster: executors run on the cluster all the same.",
        )
    if master.startswith(("yarn", "k8s://")):
        return
    raise PgetlError(
        ErrorKind.CONFIG,
        f"Spark runs no Python driver on {master}: deploy mode cluster is for YARN and Kubernetes.",
        remedy="Take the deploy mode out of the Spark connection: executors run on the cluster all the same.",
    )


def refuse_mode_in(spark: SparkSpec) -> None:
    """How the job travels depends on the mode, which is the connection's."""
    if "--deploy-mode" in spark.submit or "spark.submit.deployMode" in spark.submit:
        raise PgetlError(
            ErrorKind.CONFIG,
            "The arguments of spark-submit name a deploy mode.",
            remedy="Name it in the Spark connection, as its `deploy-mode`.",
        )


def _require_secret_keys(spark: SparkSpec, names: list[str]) -> None:
    given = shlex.split(spark.submit)
    missing = [name for name in names if not any(f"{_SECRET_KEY}.{name}=" in word for word in given)]
    if missing:
        wanted = " ".join(f"--conf {_SECRET_KEY}.{name}=SECRET:KEY" for name in missing)
        raise PgetlError(
            ErrorKind.CONFIG,
            "On Kubernetes, in deploy mode cluster, the driver has its secrets from Kubernetes, and is not told which.",
            remedy=f"Put them into secrets there, and add to the arguments of spark-submit: {wanted}",
        )


def _variables(value: Any) -> Iterator[str]:
    """The names of all references ``env:NAME``."""
    if isinstance(value, str):
        if value.startswith("env:"):
            yield value.removeprefix("env:")
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _variables(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _variables(each)
