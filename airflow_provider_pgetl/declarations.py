"""What the author of a DAG declares: tables, destinations, and the replication that binds them to Airflow's
connections.

All declarations are plain and frozen, are checked when they are made, and contain no secrets: they stand in DAG files,
are serialised with triggers and passed to Spark. `connections` resolves the connections at run time. Nothing here
imports Airflow, Spark or a database driver, so that parsing a DAG stays cheap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, get_args

from airflow_provider_pgetl.connections import DESTINATION, SOURCE, STATE, STORAGE, TRANSFORM_KEY, ConnectionIds
from airflow_provider_pgetl.engine.config import validation
from airflow_provider_pgetl.engine.config.spec import (
    CopySpec,
    DestinationSpec,
    Existing,
    Mode,
    OnError,
    OnSlotLost,
    PipelineSpec,
    SourceSpec,
    SparkSpec,
    StreamSpec,
    TableSpec,
    TransformationSpec,
    TransformSpec,
    check_id,
)
from airflow_provider_pgetl.engine.config.transformers import Transformer, used_name
from airflow_provider_pgetl.engine.config.validation import suggestion
from airflow_provider_pgetl.engine.model.quantities import parse_duration, parse_size
from airflow_provider_pgetl.engine.model.tables import TableName, parse_table
from airflow_provider_pgetl.naming import at_deployment
from airflow_provider_pgetl.naming import pipeline_id as pipeline_id_of

if TYPE_CHECKING:
    from airflow.sdk.definitions.callback import AsyncCallback

Until = Literal["caught_up"] | None
TaskShape = Literal["full", "compact"]
# A function of Airflow's context, a notifier, or an `AsyncCallback`, which names a function or notifier that is called
# in the triggerer.
Callback: TypeAlias = "Callable[[Any], Any] | AsyncCallback"
_TEMPLATE = re.compile(r"\{\{|\{%")
# In SQL two braces may be an array of arrays.
_TEMPLATE_IN_SQL = re.compile(r"\{\{-?\s*[A-Za-z_][\w.]*[^,{}]*\}\}|\{%")
_NO_TEMPLATES = "Write it out; ids of connections may be templates."
_BY_ENVIRONMENT = (
    "Write it out, or env:NAME or file:PATH, which are looked up on workers and triggerers; ids of connections may be "
    "templates."
)
T = TypeVar("T")


def Table(  # noqa: N802  reads as the declaration that it makes
    name: str,
    *,
    columns: Sequence[str] = (),
    where: str | None = None,
    insert_only: bool = False,
    destination: str | None = None,
    existing: Existing | None = None,
    transform: Mapping[str, Transformer] | Sequence[TransformSpec] = (),
) -> TableSpec:
    """Declares one table, with what differs from the defaults.

    :param name: the table in the source, ``schema.table``.
    :param columns: replicate only these columns (they must include the replica identity).
    :param where: replicate only rows that satisfy this SQL condition, a row filter of the publication.
    :param insert_only: replicate inserts and truncates only; the table then needs no replica identity.
    :param destination: the table's name in the destination, if it is not the same as in the source.
    :param existing: ``"replace"`` lets the copy replace rows there that this pipeline did not write; ``"error"``
        refuses that. Default: the `existing` of the destination.
    :param transform: what replaces the values of its columns on their way: transformers of
        `airflow_provider_pgetl.transformers` by columns, ``{"email": Email()}``, or a list of `Transform(...)`.
    """
    listed, rules = _listed("columns", columns, '["id"]'), _rules_of_table(transform)
    return TableSpec(name, listed, where, insert_only, destination, existing, rules)


def _rules_of_table(given: Mapping[str, Transformer] | Sequence[TransformSpec]) -> tuple[TransformSpec, ...]:
    if isinstance(given, Mapping):
        return tuple(Transform(column, one) for column, one in given.items())
    return _rules(given)


def _rules(given: Sequence[TransformSpec]) -> tuple[TransformSpec, ...]:
    rules = _listed("transform", given, '[Transform("email", Email())]')
    for one in rules:
        checked: object = one
        if not isinstance(checked, TransformSpec):
            remedy = 'Write, for instance, Transform("email", Email()).'
            validation.refuse("transform", f"it holds {validation.kind_of(one)}, not a rule.", remedy=remedy)
    return rules


def Transform(  # noqa: N802  reads as the declaration that it makes
    column: str,
    transformer: Transformer,
    *,
    table: str = "*.*",
    key: str | None = None,
    on_error: OnError = "error",
    allow_uniqueness_loss: bool = False,
) -> TransformSpec:
    """Declares a rule: what replaces the values of columns on their way. The first rule that covers a column holds.

    :param column: the column, or a pattern with ``*``.
    :param transformer: one of `airflow_provider_pgetl.transformers`, such as ``Email()``.
    :param table: the table, ``schema.table``, or a pattern; in `Table(transform=...)` it has no meaning.
    :param key: a reference to the key of this rule, ``env:NAME`` or ``file:PATH``; by default that of
        `Transformation`.
    :param on_error: ``"null"`` writes NULL where a value cannot be transformed; ``"error"`` stops the table.
    :param allow_uniqueness_loss: lets a column of a unique index get values that are not unique.
    """
    checked: object = transformer
    if not isinstance(checked, Transformer):
        complaint = f"the transformer of {column} is {validation.kind_of(transformer)}."
        remedy = "Write one of airflow_provider_pgetl.transformers, such as Email()."
        validation.refuse("transform", complaint, remedy=remedy)
    use, options = used_name(transformer)
    return TransformSpec(column, use, table, options, key, on_error, allow_uniqueness_loss)


@dataclass(frozen=True, slots=True)
class Transformation:
    """What holds for all rules that transform values.

    :param mode: ``"strict"`` refuses a table with a column for which there is no rule; `Keep()` is one. ``"listed"``
        lets such a column pass.
    :param key: a reference to the key of the transformers, ``env:NAME`` or ``file:PATH``, which is looked up on workers
        and triggerers.
    :param key_conn_id: instead, an Airflow connection whose password is the key.
    """

    mode: Mode = "listed"
    key: str | None = None
    key_conn_id: str | None = None

    def spec(self) -> TransformationSpec:
        if self.key is not None and self.key_conn_id is not None:
            validation.refuse("key", "it cannot be set together with key_conn_id.")
        return TransformationSpec(self.mode, f"env:{TRANSFORM_KEY}" if self.key_conn_id is not None else self.key)


class DestinationDeclaration(Protocol):
    """Where tables are replicated to. `conn_id` names the Airflow connection of its server, if it has one;
    `storage_conn_id` that of its object store. Each declaration also has `existing`: ``"replace"`` lets copies replace
    rows there that the pipeline did not write."""

    @property
    def conn_id(self) -> str | None: ...

    @property
    def storage_conn_id(self) -> str | None: ...

    def spec(self) -> DestinationSpec: ...


@dataclass(frozen=True, slots=True)
class Postgres:
    """Another Postgres.

    :param conn_id: the Airflow postgres connection of the destination.
    :param existing: ``"replace"`` lets copies replace rows there that the pipeline did not write; ``"error"`` refuses
        that.
    """

    conn_id: str
    existing: Existing = "error"

    @property
    def storage_conn_id(self) -> None:
        return None

    def spec(self) -> DestinationSpec:
        return DestinationSpec("postgres", f"env:{DESTINATION}", existing=self.existing)


@dataclass(frozen=True, slots=True)
class DeltaLake:
    """Delta tables in a folder of a file system or of an object store.

    :param uri: the folder: an absolute path, or an object store's address like ``"s3://lake/shop"``.
    :param storage_conn_id: the Airflow connection of the object store, of type aws, google_cloud_platform, wasb or
        adls; None where machines have a role of their own.
    :param storage: configuration of the object store, in addition to that of the connection, over which it takes
        precedence, or without a connection. Secrets in it are references, ``env:NAME`` or ``file:PATH``, which are
        resolved on workers and triggerers.
    :param options: the options of ``[destination]`` in a pipeline file: `mode`, `numeric`, and so on.
    :param existing: ``"replace"`` lets copies replace rows there that the pipeline did not write; ``"error"`` refuses
        that.
    """

    uri: str
    storage_conn_id: str | None = None
    storage: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    existing: Existing = "error"

    def __post_init__(self) -> None:
        _refuse_templates(("uri",), self.uri, _BY_ENVIRONMENT)
        _refuse_templates(("storage",), self.storage, _BY_ENVIRONMENT)
        _refuse_templates(("options",), self.options, _NO_TEMPLATES)
        if not self.uri.startswith(("/", "env:", "file:")) and "://" not in self.uri:
            complaint = f'"{self.uri}" is a relative path, and each of Airflow\'s processes has a folder of its own.'
            validation.refuse("uri", complaint, remedy="Write an absolute path, or an object store's address.")

    @property
    def conn_id(self) -> None:
        return None

    def spec(self) -> DestinationSpec:
        storage: dict[str, Any] = {"storage": dict(self.storage)} if self.storage else {}
        if self.storage_conn_id is not None:
            storage["storage_from"] = f"env:{STORAGE}"
        return DestinationSpec("delta", self.uri, {**self.options, **storage}, self.existing)


@dataclass(frozen=True, slots=True)
class CustomDestination:
    """A destination of your own.

    :param path: its class, as ``package.module:Class``, or the name under which an installed package declares it.
    :param conn_id: the Airflow connection of its server; the class is constructed with its URI as `uri=`.
    :param options: further arguments of the class.
    :param existing: ``"replace"`` lets copies replace rows there that the pipeline did not write; ``"error"`` refuses
        that.
    """

    path: str
    conn_id: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    existing: Existing = "error"

    def __post_init__(self) -> None:
        _refuse_templates(("options",), self.options, _BY_ENVIRONMENT)

    @property
    def storage_conn_id(self) -> None:
        return None

    def spec(self) -> DestinationSpec:
        return DestinationSpec(self.path, f"env:{DESTINATION}" if self.conn_id else None, self.options, self.existing)


@dataclass(frozen=True, slots=True)
class Copying:
    """How copies are made. Sizes are texts like ``"64MiB"``.

    :param table_workers: how many sync groups are copied or catch up at once; each has a replication slot.
    :param range_bytes: how much of a table one Spark task copies.
    :param group_bytes: the size up to which small tables share a sync group, and so a slot.
    """

    table_workers: int = 2
    range_bytes: str = "64MiB"
    group_bytes: str = "1GiB"

    def spec(self) -> CopySpec:
        return CopySpec(
            self.table_workers,
            _quantity("range_bytes", self.range_bytes, parse_size),
            _quantity("group_bytes", self.group_bytes, parse_size),
        )


@dataclass(frozen=True, slots=True)
class After:
    """The result of `after`."""

    seconds: float


def after(duration: str | timedelta) -> After:
    """Returns a duration for `Streaming(fail_on_error=…)`.

    :param duration: a text like ``"30min"``, or a `timedelta`.
    """
    return After(seconds_of("fail_on_error", duration))


@dataclass(frozen=True, slots=True)
class Streaming:
    """How changes are streamed, and when tasks fail if they are not. Durations are texts like ``"10s"``, or
    `timedelta`.

    :param memory: bounds the changes that are held in memory.
    :param min_interval: the least time between two commits of a table in the destination; None: the destination's
        default.
    :param grace: for how long a table's task waits while no worker streams, before it fails if the `apply` of its run
        has ended.
    :param outage: for how long tasks wait for a source, state or destination that is out of reach, before they fail;
        None: for ever.
    :param on_table_errored: a callable or several, notifiers among them, called when a table becomes Errored, with
        Airflow's context and, in it, `table`, `reason`, `remedy`, `errored_since`, `retry_at` (None where a person has
        to act) and `exception`. This interrupts the stream for some seconds; it does not where all are `AsyncCallback`s
        of Airflow, whose functions and notifiers are called in the triggerer.
    :param fail_on_error: whether a table that was Ready and becomes Errored fails the run's `apply`, once the other
        tables are safe: True; False; or ``after("30min")``, for a table that stays Errored for that long. By default it
        does at once where another run follows (``"@continuous"``), in which the table's own tasks then fail; and at the
        end of any run.
    """

    memory: str = "256MiB"
    min_interval: str | timedelta | None = None
    grace: str | timedelta = "3min"
    outage: str | timedelta | None = "1h"
    on_table_errored: Callback | Sequence[Callback] = ()
    fail_on_error: bool | After | None = None

    def spec(self) -> StreamSpec:
        interval = None if self.min_interval is None else seconds_of("min_interval", self.min_interval)
        return StreamSpec(_quantity("memory", self.memory, parse_size), interval)

    def tolerance(self) -> Tolerance:
        outage = None if self.outage is None else seconds_of("outage", self.outage)
        return Tolerance(seconds_of("grace", self.grace), outage, self._fail_on_error())

    def callbacks(self) -> tuple[Callback, ...]:
        from airflow_provider_pgetl.running_airflow import async_callback

        chosen = self.on_table_errored
        given = tuple(chosen) if isinstance(chosen, Sequence) else (chosen,)
        for each in given:
            checked: object = each
            if not callable(checked) and not isinstance(checked, async_callback()):
                remedy = "Name a function that takes Airflow's context, a notifier, or an AsyncCallback."
                complaint = f"it must be callable, not {validation.kind_of(each)}."
                validation.refuse("on_table_errored", complaint, remedy=remedy)
        return given

    def _fail_on_error(self) -> bool | float | None:
        given: object = self.fail_on_error
        if isinstance(given, After):
            return given.seconds
        if given is not None and not isinstance(given, bool):
            complaint = f"it must be True, False or after(…), not {validation.kind_of(given)}."
            validation.refuse("fail_on_error", complaint, remedy='Write, for instance, after("30min").')
        return given


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What tasks tolerate, and for how long; see `Streaming`. A number as `fail_on_error` is in seconds."""

    grace_seconds: float = 180.0
    outage_seconds: float | None = 3600.0
    fail_on_error: bool | float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tolerance:
        """Reads what this version, or another whose triggers are stored in Airflow's database, has written."""
        return cls(**{each.name: data[each.name] for each in fields(cls) if each.name in data})


@dataclass(frozen=True, slots=True)
class Replication:
    """One pipeline as Airflow runs it, given to each of its tasks and triggers. A trigger's has no `on_table_errored`,
    because functions cannot be stored."""

    spec: PipelineSpec
    connections: ConnectionIds
    spark_conn_id: str = "spark_default"
    tolerance: Tolerance = Tolerance()
    on_table_errored: tuple[Callback, ...] = field(default=(), compare=False)

    @property
    def tables(self) -> tuple[TableName, ...]:
        return tuple(table.pattern.literal for table in self.spec.tables)

    def declared(self, table: TableName) -> TableSpec | None:
        """Returns the declaration of a table; None where only another pipeline, or an earlier declaration, had the
        table."""
        return next((spec for spec in self.spec.tables if spec.pattern.literal == table), None)

    def place(self, table: TableName) -> TableName:
        """Returns the table's name in the destination."""
        spec = self.declared(table)
        return table if spec is None or spec.destination is None else parse_table(spec.destination)

    def at(self, deployment: str) -> Replication:
        """Returns the replication with the deployment's name added to its owner; unchanged where the deployment has no
        name."""
        if self.spec.owner is None or not deployment:
            return self
        return replace(self, spec=replace(self.spec, owner=at_deployment(self.spec.owner, deployment)))

    def as_json(self) -> dict[str, Any]:
        return {
            "spec": self.spec.as_json(),
            "connections": self.connections.as_json(),
            "spark_conn_id": self.spark_conn_id,
            "tolerance": self.tolerance.as_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Replication:
        spec = PipelineSpec.from_json(data["spec"])
        connections = ConnectionIds.from_json(data["connections"])
        return cls(spec, connections, data["spark_conn_id"], Tolerance.from_json(data.get("tolerance", {})))


def declare(
    pipeline_id: str,
    *,
    source_conn_id: str,
    tables: Sequence[str | TableSpec],
    destination: DestinationDeclaration,
    state_conn_id: str | None = None,
    spark_conn_id: str = "spark_default",
    publication: str | None = None,
    manage_publication: bool = True,
    on_slot_lost: OnSlotLost = "error",
    failover: bool = False,
    copying: Copying = Copying(),
    streaming: Streaming = Streaming(),
    spark_submit: str = "",
    transform: Sequence[TransformSpec] = (),
    transformation: Transformation = Transformation(),
    owner: str | None = None,
    adopt: str | None = None,
) -> Replication:
    """Returns the declaration of one pipeline; raises an error that says what is wrong with it. For the arguments see
    `ReplicationDag`."""
    _check_adopt(adopt)
    specs = _table_specs(tables)
    _check_destination(destination)
    for name, given in (("publication", publication), ("spark_submit", spark_submit), ("adopt", adopt)):
        _refuse_templates((name,), given, _NO_TEMPLATES)
    source = SourceSpec(f"env:{SOURCE}", publication or "", manage_publication, on_slot_lost, failover)
    return Replication(
        PipelineSpec(
            id=pipeline_id,
            tables=specs,
            source=source,
            destination=destination.spec(),
            state_uri=None if state_conn_id in (None, source_conn_id) else f"env:{STATE}",
            spark=SparkSpec(submit=spark_submit),
            copy=_blamed("copying", copying.spec),
            stream=_blamed("streaming", streaming.spec),
            owner=owner,
            adopt=adopt,
            transform=_rules(transform),
            transformation=_blamed("transformation", transformation.spec),
        ),
        ConnectionIds(
            source_conn_id,
            state_conn_id or source_conn_id,
            destination.conn_id,
            destination.storage_conn_id,
            transformation.key_conn_id,
        ),
        spark_conn_id,
        _blamed("streaming", streaming.tolerance),
        _blamed("streaming", streaming.callbacks),
    )


def check_run(until: object, rotate_after: object) -> None:
    """Raises unless `until` and `rotate_after` are valid."""
    if until not in (None, "caught_up"):
        hint = suggestion(until, ("caught_up",)) if isinstance(until, str) else "."
        validation.refuse("until", f'it must be None or "caught_up"{hint}')
    if rotate_after is None:
        return
    if not isinstance(rotate_after, (str, timedelta)):
        complaint = f"it must be None, text or a timedelta, not {validation.kind_of(rotate_after)}."
        validation.refuse("rotate_after", complaint, remedy='Write, for instance, "12h".')
    if not seconds_of("rotate_after", rotate_after):
        validation.refuse("rotate_after", "it must be longer than nothing.", remedy="Write None to stream for ever.")


def check_task_shape(tasks: object) -> None:
    if tasks not in get_args(TaskShape):
        hint = suggestion(tasks, get_args(TaskShape)) if isinstance(tasks, str) else "."
        validation.refuse("tasks", f'it must be "full" or "compact"{hint}')


def _table_specs(tables: Sequence[str | TableSpec]) -> tuple[TableSpec, ...]:
    listed = _listed("tables", tables, '["public.orders"]')
    if not listed:
        remedy = 'Name some, for instance tables=["public.orders"].'
        validation.refuse("tables", "no table is named.", remedy=remedy)
    specs = tuple(table if isinstance(table, TableSpec) else Table(table) for table in listed)
    for spec in specs:
        _refuse_pattern(spec)
        _refuse_template(spec)
    return specs


def _refuse_pattern(spec: TableSpec) -> None:
    if spec.pattern.wildcard:
        validation.refuse(
            "tables",
            f'"{spec.name}" is a pattern, and a DAG is made of the tables that it names: finding them out would need '
            "the source each time the file is parsed.",
            remedy="Write the tables out.",
        )


def _refuse_template(spec: TableSpec) -> None:
    for name in (spec.name, spec.destination or ""):
        if _TEMPLATE.search(name):
            validation.refuse(
                "tables",
                f'"{name}" is a template, and a DAG is made of its tables when its file is parsed, before templates '
                "have values.",
                remedy="Write the tables out; ids of connections may be templates.",
            )
    _refuse_templates(("columns",), spec.columns, _NO_TEMPLATES)
    if spec.where is not None and _TEMPLATE_IN_SQL.search(spec.where):
        remedy = "Write the condition out; ids of connections may be templates."
        validation.refuse("where", "it is a template, which would reach the source as it stands.", remedy=remedy)


def _refuse_templates(key: tuple[str | int, ...], given: Any, remedy: str) -> None:
    """Raises if there is a template anywhere in `given`: Airflow renders ids of connections only, so that a template
    elsewhere would be used literally."""
    if isinstance(given, str) and _TEMPLATE.search(given):
        validation.refuse(key, "it is a template, and would be taken as it stands.", remedy=remedy)
    elif isinstance(given, Mapping):
        for name, each in given.items():
            _refuse_templates((*key, str(name)), each, remedy)
    elif isinstance(given, list | tuple):
        for index, each in enumerate(given):
            _refuse_templates((*key, index), each, remedy)


def _check_adopt(adopt: object) -> None:
    if adopt is not None and (not isinstance(adopt, str) or not adopt.strip()):
        remedy = 'Write, for instance, adopt="old_dag" or adopt="old_dag/replication".'
        validation.refuse("adopt", "it must name the owner from whom the pipeline is taken over.", remedy=remedy)


def _check_destination(destination: object) -> None:
    if not hasattr(destination, "spec"):
        named = f'"{destination}"' if isinstance(destination, str) else '"replica_db"'
        complaint = f"it is {validation.kind_of(destination)}, which does not say what kind of destination it is."
        validation.refuse("destination", complaint, remedy=f"For a Postgres connection write Postgres({named}).")


def _listed(key: str, given: Sequence[T], example: str) -> tuple[T, ...]:
    if isinstance(given, str):
        validation.refuse(key, "it must be a list, not text.", remedy=f"Write, for instance, {key}={example}.")
    return tuple(given)


def _quantity(key: str, given: str, parse: Callable[[str], T]) -> T:
    if not isinstance(given, str):
        validation.refuse(key, f"it must be text, not {validation.kind_of(given)}.")
    try:
        return parse(given)
    except ValueError as error:
        validation.refuse(key, f'"{given}" cannot be read: {error}.')


def seconds_of(key: str, given: str | timedelta) -> float:
    """Returns the seconds of a duration: text like ``"10s"``, or a `timedelta`."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else _quantity(key, given, parse_duration)
    if seconds < 0:
        validation.refuse(key, "it must not be negative.")
    return seconds


def _blamed(key: str, spec: Callable[[], T]) -> T:
    with validation.blamed_on((key,)):
        return spec()


def check_pipeline_id(text: str) -> None:
    """Raises unless the text is a valid id of a pipeline. The remedy names the id that belongs to a DAG's id, as the
    two are easily confused."""
    meant = pipeline_id_of(text)
    remedy = f"Name the pipeline's id: what `pipeline_id=` says, by default the DAG's id written like {meant}."
    with validation.blamed_on(("pipeline",), remedy=remedy):
        check_id(text)
