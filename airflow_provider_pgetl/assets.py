"""The assets on which other DAGs can be scheduled.

    with DAG("orders_report", schedule=replica_asset("shop", "public.orders")): ...

The asset of a replica is named by the pipeline's id and the declared name of the table; the asset of a source table is
named by the id of the source's connection. Neither contains the address of a server, because no DAG file looks up
connections.

A run updates the assets of the tables that it has changed. A pipeline that streams for ever has no end of a run at
which to do so; there an asset watcher updates the asset while changes arrive::

    with DAG("orders_report", schedule=replica_changes("shop", "public.orders", state_conn_id="shop")): ...

An asset event of a run has the partition key of the run, where the run's schedule has any. An event of a watcher has
none: Airflow gives a trigger no way to set it.

Source tables are inlets of the tasks that read them, and show where a replica comes from. Nothing updates their assets,
so a DAG scheduled on one never runs.

The functions at the end of the module are those that Airflow finds by `asset-uris` of the provider: they validate and
normalise the asset URIs that users write, make assets of their parts, and convert assets to OpenLineage datasets.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import SplitResult, quote, unquote, urlsplit

from airflow_provider_pgetl.declarations import check_pipeline_id, seconds_of
from airflow_provider_pgetl.engine.config.validation import refuse
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName, parse_table

if TYPE_CHECKING:
    from airflow.sdk import Asset
    from openlineage.client.event_v2 import Dataset

SCHEME, SOURCE_SCHEME = "pgetl", "pgetl-source"


def replica_asset(pipeline_id: str, table: str | None = None) -> Asset:
    """Returns the asset of the replica of a table, or, without a table, of the whole pipeline.

    The asset of a table is updated when the table becomes Ready and, in a pipeline that runs `until="caught_up"`, by
    every run that has brought changes of it; the asset of the pipeline by every such run, whether anything has changed
    or not.

    :param pipeline_id: the pipeline's id: the argument `pipeline_id` of its DAG, by default the DAG's id in lower case.
    :param table: ``schema.table``, as it is declared.
    """
    check_pipeline_id(pipeline_id)
    return _asset(SCHEME, pipeline_id, None if table is None else parse_table(table))


def replica_changes(
    pipeline_id: str, table: str, *, state_conn_id: str, at_most_every: str | timedelta = "1min"
) -> Asset:
    """Returns the asset of the replica of a table with an asset watcher: it is also updated while the stream brings
    changes.

    The event's ``extra["payload"]`` has the ``position`` up to which the replica has the source's changes; its
    ``generation``, which changes with every new copy; ``schema_from``, the position since which the replica has its
    present columns; ``committed``, when the last transaction before the position was committed at the source (ISO
    8601); and ``rows``, the numbers of ``inserts``, ``updates``, ``deletes`` and ``truncates`` since the last event,
    each counted once. `rows` is None in the first event after a copy, after a run has announced changes of the table,
    and where a worker died before it had recorded what it had written. `committed` is None where nothing was counted
    yet.

    Where changes land beside the tables of a lake (`merge="spark"`), readers do not see them before the merge, which
    updates the asset: use `replica_asset` there.

    :param pipeline_id: the pipeline's id: the argument `pipeline_id` of its DAG, by default the DAG's id in lower case.
    :param table: ``schema.table``, as it is declared.
    :param state_conn_id: the Airflow postgres connection of the database that keeps the pipeline's state: the argument
        `state_conn_id` of its DAG, by default the source's connection.
    :param at_most_every: changes within this time, a text like ``"5min"`` or a `timedelta`, are one event.
    """
    from airflow.sdk import AssetWatcher

    from airflow_provider_pgetl.triggers.pgetl import ChangesTrigger

    check_pipeline_id(pipeline_id)
    seconds = seconds_of("at_most_every", at_most_every)
    if seconds < 1:
        refuse("at_most_every", f"{at_most_every} is less than a second.")
    name = parse_table(table)
    trigger = ChangesTrigger(pipeline_id, state_conn_id, [name.schema, name.name], seconds)
    return _asset(SCHEME, pipeline_id, name, watchers=[AssetWatcher(f"{pipeline_id} {name}", trigger)])


def source_asset(conn_id: str, table: TableName) -> Asset:
    """Returns the asset of a table of the source that an Airflow connection names."""
    return _asset(SOURCE_SCHEME, conn_id, table)


def _asset(scheme: str, whose: str, table: TableName | None, **more: Any) -> Asset:
    from airflow.sdk import Asset

    parts = [whose] if table is None else [whose, table.schema, table.name]
    return Asset(uri=f"{scheme}://{'/'.join(quote(part, safe='') for part in parts)}", group="pgetl", **more)


# -- What Airflow calls for the URI schemes. ---------------------------------------------------------------------------


def sanitize_replica_uri(uri: SplitResult) -> SplitResult:
    """Normalises ``pgetl://pipeline`` or ``pgetl://pipeline/schema/table``, so that equal assets have equal URIs.
    Raises `ValueError` for any other URI."""
    remedy = f"Write {SCHEME}://pipeline/schema/table, or use replica_asset(pipeline_id, table)."
    pipeline, table = _parts(uri, remedy)
    try:
        check_pipeline_id(pipeline)
    except PgetlError as error:
        raise ValueError(f"{error.message} {error.remedy}") from error
    return _written(uri, pipeline, table)


def sanitize_source_uri(uri: SplitResult) -> SplitResult:
    """Normalises ``pgetl-source://connection/schema/table``. Raises `ValueError` for any other URI."""
    remedy = f"Write {SOURCE_SCHEME}://connection/schema/table."
    conn_id, table = _parts(uri, remedy)
    if not conn_id or table is None:
        _refuse_uri(uri, "names no table of a connection", remedy)
    return _written(uri, conn_id, table)


def create_replica_asset(*, pipeline_id: str, table: str | None = None, extra: dict[str, Any] | None = None) -> Asset:
    """Returns the same asset as `replica_asset`, with `extra`."""
    check_pipeline_id(pipeline_id)
    return _asset(SCHEME, pipeline_id, None if table is None else parse_table(table), extra=extra)


def create_source_asset(*, conn_id: str, table: str, extra: dict[str, Any] | None = None) -> Asset:
    """Returns the asset of a table, given as ``schema.table``, of the source that an Airflow connection names."""
    return _asset(SOURCE_SCHEME, conn_id, parse_table(table), extra=extra)


def convert_replica_to_openlineage(asset: Asset, lineage_context: Any) -> Dataset | None:
    """Returns the dataset that is named by the pipeline; the tasks that write the replica report the server's name as
    well as this one. Returns None for a whole pipeline, which is not a dataset."""
    from openlineage.client.event_v2 import Dataset

    from airflow_provider_pgetl.openlineage.datasets import replica

    del lineage_context
    pipeline, table = _parts(urlsplit(asset.uri), "")
    return None if table is None else Dataset(*replica(pipeline, table))


def convert_source_to_openlineage(asset: Asset, lineage_context: Any) -> Dataset | None:
    """Returns the dataset that is named by the source's server, which is read from the connection; None where there is
    no such connection."""
    from airflow.providers.common.compat.sdk import AirflowNotFoundException
    from airflow.sdk import BaseHook
    from openlineage.client.event_v2 import Dataset

    from airflow_provider_pgetl.openlineage.datasets import postgres_table

    del lineage_context
    conn_id, table = _parts(urlsplit(asset.uri), "")
    assert table is not None, "others are refused"
    try:
        return Dataset(*postgres_table(BaseHook.get_connection(conn_id), table))
    except AirflowNotFoundException:
        return None


def _parts(uri: SplitResult, remedy: str) -> tuple[str, TableName | None]:
    """Returns the pipeline or connection that the URI names, and the table, if it names one."""
    if "@" in uri.netloc or ":" in uri.netloc or uri.query:
        _refuse_uri(uri, "has more than names", remedy)
    names = [unquote(part) for part in uri.path.split("/")[1:]] if uri.path not in ("", "/") else []
    if len(names) not in (0, 2) or not all(names):
        _refuse_uri(uri, "does not name one table by its schema and its name", remedy)
    return unquote(uri.netloc), TableName(*names) if names else None


def _written(uri: SplitResult, whose: str, table: TableName | None) -> SplitResult:
    names = () if table is None else (table.schema, table.name)
    path = "".join(f"/{quote(name, safe='')}" for name in names)
    return uri._replace(netloc=quote(whose, safe=""), path=path or "/", query="", fragment="")


def _refuse_uri(uri: SplitResult, why: str, remedy: str) -> NoReturn:
    """Raises `ValueError`. The message leaves out the part before the path, which may contain a password."""
    raise ValueError(f"The asset URI {uri.scheme}://…{uri.path} {why}. {remedy}")
