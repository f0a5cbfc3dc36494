"""Copies and merges on the Spark that an Airflow connection names.

The command is Airflow's own (`SparkSubmitHook`), the application and its arguments are those of `pgetl`, and so is
the process that it becomes: a session of its own, ended through its life line, killed as a whole if that does not help.

Secrets reach the application by its environment and by nothing else. In deploy mode `cluster` its driver has another,
and everything is different: `spark_cluster`. A `spark_connect` connection needs no spark-submit: the application itself
is started, and speaks to the server.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import BaseHook

from airflow_provider_pgetl.engine.config import SparkSpec
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.reports import Observer
from airflow_provider_pgetl.engine.sync.applications import Application, Job, Result
from airflow_provider_pgetl.engine.sync.submitting import (
    REMOTE_VARIABLE,
    SparkProcess,
    is_local,
    pack,
    spark_settings,
    spark_submit,
    with_address,
)
from airflow_provider_pgetl.spark_cluster import CLUSTER, refuse_impossible, refuse_mode_in, ship

if TYPE_CHECKING:
    from airflow.sdk import Connection

CONNECT = "spark_connect"
# An URI makes the scheme of a master the type of its connection.
_SUBMITTED = ("spark", "yarn", "k8s", "local")


def submit(
    application: Application[Result], job: Job, conn_id: str, observer: Observer, environment: Mapping[str, str]
) -> SparkProcess[Result]:
    """Start the application."""
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
    """The connection, or an error that says what is wrong with it. (Airflow's hook silently takes YARN instead.)"""
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
    """Airflow's hook, asked for its command only: it would neither end a whole session nor pass reports on."""

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
        """Up to and with the application. A person's arguments come after ours and so win over them."""
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
    """Nothing is told by a driver elsewhere: a result that says so, and the store, which says what came of it."""
    refuse_impossible(application.name, hook.master)
    given = ship(job, hook.master, environment)
    packages, files = given.parcel.packages, given.files
    command = hook.command(job.spec.spark, application.path, packages, files=files, settings=given.settings)
    return SparkProcess(application, [*command, *given.arguments], given.parcel.folder, observer, given.environment)


def _connect(
    application: Application[Result], job: Job, conn_id: str, observer: Observer, environment: Mapping[str, str]
) -> SparkProcess[Result]:
    """The server's address holds its token, so it goes by the environment too."""
    parcel = pack(job, local=False)
    given = {**environment, REMOTE_VARIABLE: SparkConnectHook(conn_id).get_connection_url()}
    command = [sys.executable, str(application.path), *parcel.arguments]
    return SparkProcess(application, command, parcel.folder, observer, given)
