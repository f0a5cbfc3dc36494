"""A declaration that exists is valid, says what is wrong with one that is not, and travels as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.config.spec import (
    CopySpec,
    DestinationSpec,
    PipelineSpec,
    SourceSpec,
    SparkSpec,
    StreamSpec,
    TableSpec,
)
from airflow_provider_pgetl.engine.config.validation import Misdeclared
from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.engine.model.tables import AlterationPolicy, TableName, written


def pipeline(**changed: Any) -> PipelineSpec:
    given: dict[str, Any] = {
        "id": "shop",
        "tables": (TableSpec("public.orders"),),
        "source": SourceSpec("env:SOURCE"),
        "destination": DestinationSpec("memory"),
    }
    return PipelineSpec(**{**given, **changed})


# -- round trip -------------------------------------------------------------------------------------------------------

_text = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda text: bool(text.strip())
)
_names = st.builds(TableName, _text, _text)
_references = st.sampled_from(
    ["env:URI", "file:/run/secrets/uri", "postgresql://me@db.example:6432/shop?sslmode=require"]
)
_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["path", "mode", "a b"]), inner),
    max_leaves=5,
).filter(lambda value: "://" not in str(value))


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableSpec, ...]:
    sources = draw(st.lists(_names, min_size=1, max_size=4, unique=True))
    targets = draw(st.lists(_names, min_size=len(sources), max_size=len(sources), unique=True))
    return tuple(
        TableSpec(
            written(source),
            columns=tuple(draw(st.lists(_text, max_size=3, unique=True))),
            where=draw(st.none() | _text),
            insert_only=draw(st.booleans()),
            destination=draw(st.none() | st.just(written(target))),
        )
        for source, target in zip(sources, targets, strict=True)
    )


pipelines = st.builds(
    PipelineSpec,
    id=st.text("az09_", min_size=1, max_size=24),
    tables=tables(),
    source=st.builds(
        SourceSpec,
        uri=_references,
        publication=st.text(max_size=15),
        manage_publication=st.booleans(),
        on_slot_lost=st.sampled_from(["error", "resync"]),
        failover=st.booleans(),
    ),
    destination=st.builds(
        DestinationSpec,
        type=st.just("package.module:Class"),
        uri=st.none() | _references,
        options=st.dictionaries(st.sampled_from(["path", "mode", "depth"]), _plain),
    ),
    exclude=st.lists(_names.map(written), max_size=2).map(tuple),
    state_uri=st.none() | _references,
    spark=st.builds(SparkSpec, master=_text, submit=st.text(max_size=5).map(shlex.quote)),
    copy=st.builds(
        CopySpec,
        table_workers=st.integers(1, 9),
        range_bytes=st.integers(8192, 1 << 40),
        group_bytes=st.integers(8192, 1 << 40),
    ),
    stream=st.builds(
        StreamSpec, memory=st.integers(1 << 20, 1 << 40), min_interval=st.none() | st.floats(0, 1e6, allow_nan=False)
    ),
)


@given(pipelines)
def test_a_pipeline_comes_back_from_json_as_it_was(spec: PipelineSpec) -> None:
    assert PipelineSpec.from_json(json.loads(json.dumps(spec.as_json(), allow_nan=False))) == spec


def test_json_that_holds_what_nobody_knows_is_refused() -> None:
    data = pipeline().as_json()
    data["copy"]["table_worker"] = 3
    with pytest.raises(Misdeclared, match="table_workers") as caught:
        PipelineSpec.from_json(data)
    assert caught.value.key == ("copy", "table_worker")


def test_json_that_lacks_something_is_refused() -> None:
    data = pipeline().as_json()
    del data["tables"][0]["name"]
    with pytest.raises(Misdeclared, match="missing") as caught:
        PipelineSpec.from_json(data)
    assert caught.value.key == ("tables", 0, "name")


# -- refusals ---------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[Callable[[], object], tuple[str | int, ...], str]] = [
    (lambda: pipeline(id=""), ("id",), "lower case"),
    (lambda: pipeline(id="Shop"), ("id",), "lower case"),
    (lambda: pipeline(id="shop-eu"), ("id",), "lower case"),
    (lambda: pipeline(id="shöp"), ("id",), "lower case"),
    (lambda: pipeline(id="shop\n"), ("id",), "lower case"),
    (lambda: pipeline(id="a" * 25), ("id",), "25 characters"),
    (lambda: pipeline(id=7), ("id",), "text, not a whole number"),
    (lambda: pipeline(tables=()), ("tables",), "no table"),
    (lambda: pipeline(tables=[TableSpec("a.b")]), ("tables",), "a list, not"),
    (lambda: pipeline(tables=(TableSpec("a.b"), TableSpec('"a".b'))), ("tables", 1, "name"), "twice"),
    (lambda: pipeline(tables=(TableSpec("a.*"), TableSpec("a.*"))), ("tables", 1, "name"), "twice"),
    (
        lambda: pipeline(tables=(TableSpec("a.b", destination="x.y"), TableSpec("a.c", destination='x."y"'))),
        ("tables", 1, "destination"),
        "already",
    ),
    (lambda: pipeline(exclude=("a.b", "c")), ("exclude", 1), "public.c"),
    (lambda: pipeline(state_uri="postgresql://me:hunter2@h/d"), ("state_uri",), "password"),
    (lambda: TableSpec("orders"), ("name",), "public.orders"),
    (lambda: TableSpec("a.b", columns=("x", "x")), ("columns", 1), "twice"),
    (lambda: TableSpec("a.b", columns=("x", "")), ("columns", 1), "empty"),
    (lambda: TableSpec("a.b", columns="xy"), ("columns",), "a list, not text"),  # type: ignore[arg-type]
    (lambda: TableSpec("a.b", where=" "), ("where",), "empty"),
    (lambda: TableSpec("a.b", insert_only=1), ("insert_only",), "true or false"),  # type: ignore[arg-type]
    (lambda: TableSpec("a.*", destination="x.y"), ("destination",), "several"),
    (lambda: TableSpec("a.b", destination="x.*"), ("destination",), "several"),
    (lambda: SourceSpec(""), ("uri",), "empty"),
    (lambda: SourceSpec("env:"), ("uri",), "env:NAME"),
    (lambda: SourceSpec("env:A-B"), ("uri",), "env:NAME"),
    (lambda: SourceSpec("host=db password=hunter2"), ("uri",), "password"),
    (lambda: SourceSpec("postgresql://h/d?password=hunter2"), ("uri",), "password"),
    (lambda: SourceSpec("postgresql://me:hun/ter2@h/d"), ("uri",), "cannot be read"),
    (lambda: SourceSpec("env:A", publication="é" * 28), ("publication",), "55 bytes"),
    (lambda: SourceSpec("env:A", publication="é" * 32, manage_publication=False), ("publication",), "63 bytes"),
    (lambda: SourceSpec("env:A", on_slot_lost="resnyc"), ("on_slot_lost",), "resync"),  # type: ignore[arg-type]
    (lambda: DestinationSpec("postgre", "env:A"), ("type",), 'did you mean "postgres"'),
    (lambda: DestinationSpec("package.module"), ("type",), "package.module:Class"),
    (lambda: DestinationSpec("postgres"), ("uri",), "missing"),
    (lambda: DestinationSpec("memory", options={"urj": 1}), ("options", "urj"), 'did you mean "uri"'),
    (lambda: DestinationSpec("a:B", "s3://me:hunter2@bucket"), ("uri",), "password"),
    (lambda: DestinationSpec("a:B", options={"password": "hunter2"}), ("options", "password"), "secret"),
    (
        lambda: DestinationSpec("a:B", options={"s3": {"access_key": "hunter2"}}),
        ("options", "s3", "access_key"),
        "secret",
    ),
    (lambda: DestinationSpec("a:B", options={"at": "s3://me:hunter2@b"}), ("options", "at"), "password"),
    (lambda: DestinationSpec("a:B", options={"x": float("inf")}), ("options", "x"), "finite"),
    (lambda: DestinationSpec("a:B", options={"x": [object()]}), ("options", "x", 0), "an? object"),
    (lambda: SparkSpec(master=" "), ("master",), "local"),
    (lambda: CopySpec(table_workers=0), ("table_workers",), "at least 1"),
    (lambda: CopySpec(table_workers=True), ("table_workers",), "a whole number, not true or false"),
    (lambda: CopySpec(range_bytes=100), ("range_bytes",), "8KiB"),
    (lambda: CopySpec(group_bytes=1.5), ("group_bytes",), "a whole number, not a number"),  # type: ignore[arg-type]
    (lambda: StreamSpec(memory=1000), ("memory",), "1MiB"),
    (lambda: StreamSpec(min_interval=-1.0), ("min_interval",), "zero or more"),
    (lambda: StreamSpec(min_interval=float("nan")), ("min_interval",), "zero or more"),
    (lambda: StreamSpec(min_interval=float("inf")), ("min_interval",), "at most 876000h"),
    (lambda: StreamSpec(memory=1 << 60), ("memory",), "at most 1024TiB"),
    (lambda: CopySpec(group_bytes=1 << 60), ("group_bytes",), "at most 1024TiB"),
]


@pytest.mark.parametrize(("declare", "key", "words"), REFUSED)
def test_what_cannot_stand_is_refused_by_key(
    declare: Callable[[], object], key: tuple[str | int, ...], words: str
) -> None:
    with pytest.raises(Misdeclared, match=words) as caught:
        declare()
    assert caught.value.key == key
    assert caught.value.kind is ErrorKind.CONFIG
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        "env:URI",
        "file:~/uri",
        "postgresql:///shop",
        "postgresql://me@a:1,b:2/shop",
        "host=/run/postgresql dbname=shop",
        "service=shop",
    ],
)
def test_references_and_uris_without_a_password_stand(uri: str) -> None:
    assert SourceSpec(uri).uri == uri


def test_a_lake_s_folder_may_be_written_as_a_uri() -> None:
    """While `file:PATH` is a reference, to a file that holds the URI."""
    assert DestinationSpec("delta", "file:///var/my%20lake").uri == "/var/my lake"
    assert DestinationSpec("delta", "file:lake.uri").uri == "file:lake.uri"
    assert DestinationSpec("postgres", "file:///run/uri").uri == "file:///run/uri"
    with pytest.raises(Misdeclared, match="file:///path") as caught:
        DestinationSpec("delta", "file://host/lake")
    assert caught.value.key == ("uri",)


def test_a_decimal_may_be_written_with_blanks() -> None:
    spelled = DestinationSpec("delta", "/lake", {"numeric": "decimal( 10 , 2 )"})
    assert spelled.form == DestinationSpec("delta", "/lake", {"numeric": "decimal(10,2)"}).form


def test_secrets_among_options_travel_by_reference() -> None:
    assert DestinationSpec("a:B", options={"password": "env:P", "depth": 3}).options == {
        "password": "env:P",
        "depth": 3,
    }


def test_names_derived_from_the_id_fit_into_postgres() -> None:
    assert pipeline(id="a" * 24).publication == "pgetl_" + "a" * 24


def test_the_state_is_kept_at_the_source_unless_said_otherwise() -> None:
    assert pipeline().state == "env:SOURCE"
    assert pipeline(state_uri="env:STATE").state == "env:STATE"


def test_what_is_done_about_alterations_is_declared_for_each_table() -> None:
    assert TableSpec("public.orders").policy == AlterationPolicy("manual", "keep")
    declared = TableSpec("public.*", resync="on_incompatible_change", on_drop="drop")
    assert declared.policy == AlterationPolicy("on_incompatible_change", "drop")
    for wrong in ({"resync": "always"}, {"on_drop": "cascade"}):
        with pytest.raises(Misdeclared) as refused:
            TableSpec("public.orders", **wrong)  # type: ignore[arg-type]
        assert refused.value.key == (next(iter(wrong)),)
