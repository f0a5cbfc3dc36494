"""Runs copies and merges on the Spark that an Airflow connection names.

The command is Airflow's own (`SparkSubmitHook`); the application, its arguments and the process (`SparkProcess`) are
those of the `pgetl` command: a session of its own, ended through its life line, and killed as a whole if it does not
end.

Secrets reach the application through its environment only. In deploy mode `cluster` the driver has another environment,
and the rules of the section below apply. A `spark_connect` connection needs no spark-submit: the application itself is
started, and connects to the server.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import BaseHook

from airflow_provider_pgetl.connections import DESTINATION, SOURCE, STATE, STORAGE
from airflow_provider_pgetl.engine.config.spec import SparkSpec
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.reports import Observer
from airflow_provider_pgetl.engine.spark.submission import (
    COPY,
    REMOTE_VARIABLE,
    Application,
    Job,
    Parcel,
    Result,
    SparkProcess,
    is_local,
    pack,
    spark_settings,
    spark_submit,
    with_address,
)

if TYPE_CHECKING:
    from airflow.sdk import Connection


# ----------------------------------------------------------------------------------------------------------------------
# Deploy mode `cluster`: the driver runs on the cluster too; only files and an exit code pass between it and the task.
#
# * The job is passed by ``--files``. So are, on YARN, the values of its references, in a file of their own: never in
#   arguments, and never in Spark's configuration, which everyone can read who can see the application. YARN keeps such
#   files in folders of the submitting user, and removes them with the application.
# * On Kubernetes files go through a store that is never emptied. There the driver must get its secrets from Kubernetes
#   itself, as variables: ``--conf spark.kubernetes.driver.secretKeyRef.NAME=secret:key`` for each.
# * The outcome for each table is in the pipeline's store, as always; reports and figures are not sent back.
# * There is no life line. The driver ends when its attempt does, which exists in the store for as long as the task that
#   has reserved it (`engine.copy.admission`) runs: the driver looks every few seconds, stops, and removes what it
#   staged.
#
# Spark's standalone clusters run no Python driver, and a local master has no cluster: both are refused.

CLUSTER = "cluster"
_SECRETS_FILE = "secrets.json"
_SECRET_KEY = "spark.kubernetes.driver.secretKeyRef"
_ONCE = {"spark.yarn.maxAppAttempts": "1"}  # the task makes the next attempt, under its own number
_ADDRESSES = (SOURCE, STATE, DESTINATION, STORAGE)
# This machine's interpreter is not that of the cluster.
_PYTHON = {"PYSPARK_PYTHON": "python3", "PYSPARK_DRIVER_PYTHON": "python3"}


@dataclass(frozen=True, slots=True)
class Shipment:
    """The files that spark-submit passes to the driver, the driver's arguments, further Spark settings, and the
    environment of spark-submit itself."""

    parcel: Parcel
    files: tuple[Path, ...]
    arguments: tuple[str, ...]
    settings: Mapping[str, str]
    environment: Mapping[str, str]


def ship(job: Job, master: str, environment: Mapping[str, str]) -> Shipment:
    """Packs the job for a driver on the cluster; on YARN with a file of the secrets, which is removed together with the
    job's folder."""
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
    """Raises for a master on which Spark supports no such driver, and for an application that can report its outcome
    only through its output."""
    if application != COPY.name:
        raise PgetlError(
            ErrorKind.CONFIG,
            f"A {application} reports its outcome to the process that started it; a driver on the cluster cannot.",
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
    """Raises if the arguments of spark-submit name a deploy mode: how the job is passed depends on the mode, so only
    the connection may name it."""
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
    """Yields the names of all references ``env:NAME``."""
    if isinstance(value, str):
        if value.startswith("env:"):
            yield value.removeprefix("env:")
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _variables(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _variables(each)


# -- Spark submission. -------------------------------------------------------------------------------------------------

CONNECT = "spark_connect"
# A connection that is given as a URI has the scheme of the master as its type.
_SUBMITTED = ("spark", "yarn", "k8s", "local")


def submit(
    application: Application[Result], job: Job, conn_id: str, observer: Observer, environment: Mapping[str, str]
) -> SparkProcess[Result]:
    """Starts the application and returns its process."""
    connection = spark_connection(conn_id)
    if connection.conn_type == CONNECT:
        return _connect(application, job, conn_id, observer, environment)
    hook = CommandHook(application.title(job), conn_id)
    if hook.deploy_mode == CLUSTER:
        return _away(application, job, hook, observer, environment)
    parcel = pack(job, local=is_local(hook.master))
    command = hook.command(job.spec.spark, application.path, parcel.packages)
    around = with_address(environment, hook.master)
    return SparkProcess(application, [*command, *parcel.arguments], parcel.folder, observer, around)


def spark_connection(conn_id: str) -> Connection:
    """Returns the connection, or raises an error that says what is wrong with it. (Airflow's hook silently uses YARN
    instead.)"""
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise PgetlError(
            ErrorKind.CONFIG,
            f"There is no Airflow connection {conn_id!r}, by which Spark is to be reached.",
            remedy="Add one of type spark (host `local[*]`, or the address of a master) or spark_connect, or name "
            "another as `spark_conn_id`.",
        ) from None
    if connection.conn_type not in (*_SUBMITTED, CONNECT):
        raise PgetlError(
            ErrorKind.CONFIG,
            f"The connection {conn_id!r} is of type {connection.conn_type!r}, not spark or spark_connect.",
            remedy="Name one of those as `spark_conn_id`.",
        )
    return connection


class CommandHook(SparkSubmitHook):
    """Airflow's hook, used only to build the command: it would neither end a whole session nor pass reports on."""

    def __init__(self, name: str, conn_id: str) -> None:
        super().__init__(conn_id=conn_id, name=name)

    @property
    def master(self) -> str:
        return str(self._connection["master"])

    @property
    def deploy_mode(self) -> str | None:
        return self._connection["deploy_mode"] or None

    def command(
        self,
        spark: SparkSpec,
        program: Path,
        packages: Sequence[Path],
        *,
        files: Sequence[Path] = (),
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> list[str]:
        """Returns the command up to and including the application. The user's arguments come after ours and so take
        precedence."""
        refuse_mode_in(spark)
        self._conf: dict[str, Any] = {**spark_settings(self.master), **settings}
        self._py_files = ",".join(map(str, packages)) or None
        self._files = ",".join(map(str, files)) or None
        binary, *arguments = self._build_spark_common_command()
        found = shutil.which(binary) or str(spark_submit())
        return [found, *arguments, *shlex.split(spark.submit), str(program)]

    def _build_spark_common_command(self) -> Sequence[str]:
        return [*self._get_spark_binary_path(), *self._build_spark_common_args()]


def _away(
    application: Application[Result], job: Job, hook: CommandHook, observer: Observer, environment: Mapping[str, str]
) -> SparkProcess[Result]:
    """Starts the driver on the cluster. Such a driver reports nothing back: the result says only that, and the store
    has the outcome."""
    refuse_impossible(application.name, hook.master)
    given = ship(job, hook.master, environment)
    packages, files = given.parcel.packages, given.files
    command = hook.command(job.spec.spark, application.path, packages, files=files, settings=given.settings)
    return SparkProcess(application, [*command, *given.arguments], given.parcel.folder, observer, given.environment)


def _connect(
    application: Application[Result], job: Job, conn_id: str, observer: Observer, environment: Mapping[str, str]
) -> SparkProcess[Result]:
    """Starts the application here, to use a Spark Connect server. The server's address contains its token, so it is
    passed in the environment too."""
    parcel = pack(job, local=False)
    given = {**environment, REMOTE_VARIABLE: SparkConnectHook(conn_id).get_connection_url()}
    command = [sys.executable, str(application.path), *parcel.arguments]
    return SparkProcess(application, command, parcel.folder, observer, given)
