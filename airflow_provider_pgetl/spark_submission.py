"""Copies and merges on the Spark that an Airflow connection names.

The command is Airflow's own (`SparkSubmitHook`), the application and its arguments are those of `pgetl`, and so is
the process that it becomes: a session of its own, ended through its life line, killed as a whole if that does not help.

Secrets reach the application by its environment and by nothing else, so its driver must run here: a connection with
deploy mode `cluster` is refused. A `spark_connect` connection needs no spark-submit: the application itself is started,
and speaks to the server.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

from airflow_provider_pgetl.engine.config import SparkSpec
from airflow_provider_pgetl.engine.reports import Observer
from airflow_provider_pgetl.engine.sync.applications import Application, Job, Result
from airflow_provider_pgetl.engine.sync.submitting import (
    REMOTE_VARIABLE,
    Parcel,
    SparkProcess,
    is_local,
    pack,
    spark_settings,
    spark_submit,
)

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
    parcel = pack(job, local=is_local(hook.master))
    command = hook.command(job.spec.spark, application.path, parcel)
    return SparkProcess(application, [*command, *parcel.arguments], parcel.folder, observer, environment)


def spark_connection(conn_id: str) -> Connection:
    """The connection, or an error that says what is wrong with it. (Airflow's hook silently takes YARN instead.)"""
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise AirflowFailException(
            f"There is no Airflow connection {conn_id!r}, by which tables are to be copied. Add one of type spark "
            "(host `local[*]`, or the address of a master) or spark_connect, or name another as `spark_conn_id`."
        ) from None
    if connection.conn_type not in (*_SUBMITTED, CONNECT):
        raise AirflowFailException(
            f"The connection {conn_id!r} is of type {connection.conn_type!r}, not spark or spark_connect. "
            "Name one of those as `spark_conn_id`."
        )
    if connection.extra_dejson.get("deploy-mode") == "cluster":
        raise AirflowFailException(
            f"The connection {conn_id!r} has deploy mode cluster, in which the passwords of source and destination "
            "would become part of Spark's configuration. Use client mode: executors run on the cluster all the same."
        )
    return connection


class CommandHook(SparkSubmitHook):
    """Airflow's hook, asked for its command only: it would neither end a whole session nor pass reports on."""

    def __init__(self, name: str, conn_id: str) -> None:
        super().__init__(conn_id=conn_id, name=name)

    @property
    def master(self) -> str:
        return str(self._connection["master"])

    def command(self, spark: SparkSpec, program: Path, parcel: Parcel) -> list[str]:
        """Up to and with the application. A person's arguments come after ours and so win over them."""
        self._conf: dict[str, Any] = spark_settings(self.master)
        self._py_files = ",".join(map(str, parcel.packages)) or None
        binary, *arguments = self._build_spark_common_command()
        found = shutil.which(binary) or str(spark_submit())
        return [found, *arguments, *shlex.split(spark.submit), str(program)]

    def _build_spark_common_command(self) -> Sequence[str]:
        return [*self._get_spark_binary_path(), *self._build_spark_common_args()]


def _connect(
    application: Application[Result], job: Job, conn_id: str, observer: Observer, environment: Mapping[str, str]
) -> SparkProcess[Result]:
    """The server's address holds its token, so it goes by the environment too."""
    parcel = pack(job, local=False)
    given = {**environment, REMOTE_VARIABLE: SparkConnectHook(conn_id).get_connection_url()}
    command = [sys.executable, str(application.path), *parcel.arguments]
    return SparkProcess(application, command, parcel.folder, observer, given)
