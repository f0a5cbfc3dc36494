"""From a declaration to a destination; what is wrong with the declaration is said in its own words."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_pgetl.engine.config.destination_types import GROUP, destination_type
from airflow_provider_pgetl.engine.config.spec import DestinationSpec
from airflow_provider_pgetl.engine.config.validation import Misdeclared
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.memory import MemoryDestination
from airflow_provider_pgetl.engine.destinations.postgres import PostgresDestination
from airflow_provider_pgetl.engine.destinations.protocol import open_destination, opened_destination, resolved_options
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from tests.raising import raises


class Own:
    """A person's own destination, of the smallest kind."""

    name = "own"

    def __init__(self, colour: str = "", uri: str | None = None) -> None:
        self.colour, self.uri = colour, uri

    def drop_table_for_copy(self, schema: Any) -> None: ...

    def write_table_rows(self, schema: Any, rows: Any) -> None: ...

    def write_events(self, batch: Any) -> None: ...

    def shutdown(self) -> None: ...


class Lacking:
    name = "lacking"

    def write_events(self, batch: Any) -> None: ...


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("their_module")
    module.Own, module.Lacking, module.number = Own, Lacking, 1  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, "their_module", module)


def test_postgres_connects_when_it_is_used_and_not_before() -> None:
    opened = open_destination(
        DestinationSpec("postgres", "env:X"), "postgresql://nobody@nowhere.invalid/", "shop", "apply"
    )
    assert isinstance(opened, PostgresDestination)
    opened.shutdown()


def test_memory_is_shared_by_all_who_open_it_for_one_pipeline() -> None:
    first, second, other = (open_destination(DestinationSpec("memory"), None, p, "w") for p in ("a", "a", "b"))
    assert isinstance(first, MemoryDestination)
    assert isinstance(second, MemoryDestination)
    assert isinstance(other, MemoryDestination)
    assert first.storage is second.storage
    assert first.storage is not other.storage
    named = open_destination(DestinationSpec("memory", options={"name": "a"}), None, "b", "w")
    assert isinstance(named, MemoryDestination)
    assert named.storage is first.storage


def test_a_lake_s_storage_is_put_together_from_references(tmp_path: Path) -> None:
    """What is written out goes before what is elsewhere; what a reference stands for is not taken for one again."""
    (tmp_path / "storage.json").write_text('{"AWS_REGION": "eu-west-1", "AWS_SECRET_ACCESS_KEY": "env:odd"}')
    storage = {"AWS_REGION": "eu-central-1", "AWS_SESSION_TOKEN": "env:TOKEN"}
    options = {"mode": "history", "storage": storage, "storage_from": f"file:{tmp_path}/storage.json"}
    spec = DestinationSpec("delta", "s3://lake", options)
    found = resolved_options(spec, {"TOKEN": "t"})
    assert found == {
        "mode": "history",
        "storage": {"AWS_REGION": "eu-central-1", "AWS_SECRET_ACCESS_KEY": "env:odd", "AWS_SESSION_TOKEN": "t"},
    }
    opened = open_destination(spec, "s3://lake", "shop", "w", found)
    assert isinstance(opened, DeltaDestination)
    assert opened._options.storage == found["storage"]


@pytest.mark.parametrize("text", ["AKIA", "[]", '{"AWS_REGION": 1}'])
def test_what_is_no_storage_is_not_quoted(text: str) -> None:
    spec = DestinationSpec("delta", "s3://lake", {"storage_from": "env:STORAGE"})
    with pytest.raises(PgetlError, match="env:STORAGE is no storage") as caught:
        resolved_options(spec, {"STORAGE": text})
    assert text not in caught.value.message


@pytest.mark.usefixtures("own_module")
def test_a_person_s_own_is_given_its_options_and_the_uri_if_there_is_one() -> None:
    plain = open_destination(DestinationSpec("their_module:Own", options={"colour": "red"}), None, "shop", "w")
    assert isinstance(plain, Own)
    assert (plain.colour, plain.uri) == ("red", None)
    placed = open_destination(DestinationSpec("their_module:Own"), "place", "shop", "w")
    assert isinstance(placed, Own)
    assert placed.uri == "place"


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (DestinationSpec("no_such_module:Own"), "no_such_module"),
        (DestinationSpec("their_module:Nothing"), "no class Nothing"),
        (DestinationSpec("their_module:number"), "no class number"),
        (DestinationSpec("their_module:Own", options={"size": 1}), "size"),
        (DestinationSpec("their_module:Lacking"), "lacks drop_table_for_copy, write_table_rows, shutdown"),
    ],
    ids=lambda value: value.type if isinstance(value, DestinationSpec) else "",
)
def test_what_is_wrong_is_named(spec: DestinationSpec, word: str) -> None:
    with raises(ErrorKind.CONFIG, match=word):
        open_destination(spec, None, "shop", "apply")


@pytest.mark.usefixtures("own_module")
def test_what_is_opened_for_a_block_is_shut_down_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(Own, "shutdown", lambda self: closed.append(self.colour))
    spec = DestinationSpec("their_module:Own", options={"colour": "red"})
    with pytest.raises(ZeroDivisionError), opened_destination(spec, None, "shop", "w"):
        raise ZeroDivisionError
    assert closed == ["red"]


# -- A destination of another package, which declares its type as those of pgetl do. -----------------------------------

THEIRS = """
from dataclasses import dataclass
from airflow_provider_pgetl.engine.config.destination_types import DestinationType
from airflow_provider_pgetl.engine.config.validation import refuse

@dataclass(frozen=True, slots=True)
class Paint(DestinationType):
    def check(self, options):
        DestinationType.check(self, options)
        if options.get("colour") == "clear":
            refuse("colour", "nobody would see it.", remedy="Choose another.")

    def form(self, options):
        return {"colour": options.get("colour", "red")}

    def resolved(self, options, environment):
        return {**options, "brush": environment["BRUSH"]}

    def open(self, uri, options, pipeline, worker):
        import their_module
        made = their_module.Own(options["colour"], uri)
        made.brush, made.worker = options["brush"], (pipeline, worker)
        return made

PAINT, BROKEN = Paint("paint", ("colour",), needs_uri="a wall stands somewhere"), object()
"""


@pytest.fixture
def paint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_module: None) -> Iterator[None]:
    """Installed as a package is: by its metadata."""
    metadata = tmp_path / "their_paint-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-paint\nVersion: 1.0\n")
    points = "paint = their_paint:PAINT\nbroken = their_paint:BROKEN\naway = their_paint:AWAY\n"
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")
    (tmp_path / "their_paint.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    destination_type.cache_clear()
    sys.modules.pop("their_paint", None)


@pytest.mark.usefixtures("paint")
def test_a_destination_of_another_package_has_the_rights_of_a_built_in_one() -> None:
    spec = DestinationSpec("paint", "env:WALL", {"colour": "blue"})
    assert (spec.form, spec.lands, spec.computes) == ({"colour": "blue"}, False, False)
    opened = open_destination(spec, "wall", "shop", "apply", resolved_options(spec, {"BRUSH": "wide"}))
    assert isinstance(opened, Own)
    assert (opened.colour, opened.uri) == ("blue", "wall")
    assert vars(opened)["brush"] == "wide"
    assert vars(opened)["worker"] == ("shop", "apply")


@pytest.mark.usefixtures("paint")
@pytest.mark.parametrize(
    ("uri", "options", "said"),
    [
        ("env:WALL", {"color": "blue"}, 'options.color: there is no such key; did you mean "colour"?'),
        ("env:WALL", {"colour": "clear"}, "options.colour: nobody would see it."),
        (None, {}, "uri: it is missing; a wall stands somewhere."),
    ],
)
def test_what_is_declared_for_it_is_checked(uri: str | None, options: dict[str, Any], said: str) -> None:
    with pytest.raises(Misdeclared) as caught:
        DestinationSpec("paint", uri, options)
    assert caught.value.message == said


@pytest.mark.usefixtures("paint")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pain", 'did you mean "paint"'),
        ("broken", "is no DestinationType"),
        ("away", '"away" cannot be imported'),
    ],
)
def test_a_type_that_cannot_be_found_is_named(name: str, said: str) -> None:
    with raises(ErrorKind.CONFIG, match=said):
        DestinationSpec(name)
