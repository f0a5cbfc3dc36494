"""The pipeline file: what it may say, and that every mistake in it is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_pgetl.engine.config.pipeline_file import PipelineFile, read_pipeline_file
from airflow_provider_pgetl.engine.config.spec import (
    CopySpec,
    DestinationSpec,
    PipelineSpec,
    SourceSpec,
    SparkSpec,
    StreamSpec,
    TableSpec,
)
from airflow_provider_pgetl.engine.model.errors import ErrorKind, FoundWanting, PgetlError
from tests.raising import raises

MINIMAL = """\
id = "shop"
tables = ["public.orders"]
[source]
uri = "env:SOURCE"
[destination]
type = "postgres"
uri = "env:DESTINATION"
"""

FULL = """\
id = "shop"
tables = ["public.customers", "inventory.*"]
exclude = ["inventory.tmp_*"]

[[table]]
name = 'public."Weird ""Name"'
columns = ["id", "note"]
where = "id > 10"
destination = "archive.weird"

[[table]]
name = "public.audit"
insert_only = true

[source]
uri = "env:SOURCE"
publication = "shop_pub"
manage_publication = false
on_slot_lost = "resync"
failover = true

[state]
uri = "file:/run/secrets/state"

[destination]
type = "acme.lake:Lake"
path = "/lake"
retries = 3

[spark]
master = "spark://host:7077"
submit = "--driver-memory 2g"

[copy]
table_workers = 4
range_bytes = "32MiB"
group_bytes = 536870912

[stream]
memory = "128MiB"
min_interval = "500ms"
"""


def read(tmp_path: Path, text: str) -> PipelineFile:
    path = tmp_path / "shop.toml"
    path.write_text(text, encoding="utf-8")
    return read_pipeline_file(path)


def test_a_minimal_file_takes_every_default(tmp_path: Path) -> None:
    assert read(tmp_path, MINIMAL).spec == PipelineSpec(
        id="shop",
        tables=(TableSpec("public.orders"),),
        source=SourceSpec("env:SOURCE"),
        destination=DestinationSpec("postgres", "env:DESTINATION"),
    )


def test_every_key(tmp_path: Path) -> None:
    assert read(tmp_path, FULL).spec == PipelineSpec(
        id="shop",
        tables=(
            TableSpec("public.customers"),
            TableSpec("inventory.*"),
            TableSpec('public."Weird ""Name"', ("id", "note"), "id > 10", destination="archive.weird"),
            TableSpec("public.audit", insert_only=True),
        ),
        source=SourceSpec("env:SOURCE", "shop_pub", manage_publication=False, on_slot_lost="resync", failover=True),
        destination=DestinationSpec("acme.lake:Lake", options={"path": "/lake", "retries": 3}),
        exclude=("inventory.tmp_*",),
        state_uri="file:/run/secrets/state",
        spark=SparkSpec("spark://host:7077", "--driver-memory 2g"),
        copy=CopySpec(4, 32 << 20, 512 << 20),
        stream=StreamSpec(128 << 20, 0.5),
    )


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert read_pipeline_file(path).spec == read(tmp_path, MINIMAL).spec


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("inventory.*", 2),
        ("inventory.tmp_*", 3),
        ('public."Weird ""Name"', 5),
        ('public.Weird "Name', 5),
        ("public.audit", 11),
    ],
)
def test_what_the_source_finds_wrong_is_placed_by_the_words_of_the_file(tmp_path: Path, words: str, line: int) -> None:
    assert read(tmp_path, FULL).place(words) == f"{tmp_path}/shop.toml:{line}"


@pytest.mark.parametrize("words", [None, "public.unheard_of"])
def test_what_the_file_does_not_say_has_no_line(tmp_path: Path, words: str | None) -> None:
    assert read(tmp_path, FULL).place(words) == f"{tmp_path}/shop.toml"


# (what is replaced in FULL, by what, the line that is named, what the message and its remedy say)
MISTAKES = [
    ('id = "shop"', 'id = "Shop"', 1, ["id", "lower case"]),
    ('id = "shop"', "id = 3", 1, ["id", "text, not a whole number"]),
    ('id = "shop"', 'idd = "shop"', 1, ["idd", 'did you mean "id"?']),
    ('id = "shop"', 'id = "shop', 1, ["not TOML"]),
    ('"inventory.*"', '"inventory"', 2, ['"inventory"', "public.inventory"]),
    ('"inventory.*"', '\n"public.customers"', 3, ["public.customers", "twice"]),
    ('"inventory.*"', "\n4", 3, ["text, not a whole number"]),
    ('["inventory.tmp_*"]', '"inventory.tmp_*"', 3, ["exclude", "a list, not text"]),
    ("tmp_*", "", 3, ["inventory.", "schema.table"]),
    ("columns", "colums", 7, ["table.colums", 'did you mean "columns"?']),
    ('"note"', '"id"', 7, ["id", "twice"]),
    ('name = "public.audit"', "", 11, ["name", "missing"]),
    ('name = "public.audit"', 'name = "public.customers"', 12, ["public.customers", "twice"]),
    ('name = "public.audit"', 'name = "public.*"\ndestination = "a.b"', 13, ["destination", "several"]),
    ("insert_only = true", 'insert_only = "yes"', 13, ["insert_only", "true or false, not text"]),
    ('"env:SOURCE"', '"postgresql://me:hunter2@db/shop"', 16, ["password", "env:NAME", "PGPASSWORD"]),
    ('uri = "env:SOURCE"', "", 15, ["source.uri", "missing"]),
    ('uri = "env:SOURCE"', 'uri = "env:SOURCE"\npassword = "hunter2"', 17, ["source.password", "no such key"]),
    ('"resync"', '"resnyc"', 19, ["on_slot_lost", 'did you mean "resync"?']),
    ("failover = true", "failover = 1", 20, ["failover", "true or false"]),
    ('uri = "file:', 'url = "file:', 23, ["state.url", 'did you mean "uri"?']),
    ('uri = "file:/run/secrets/state"', "", 22, ["state.uri", "missing"]),
    ('"acme.lake:Lake"', '"postgre"', 26, ["postgre", 'did you mean "postgres"?']),
    ('"acme.lake:Lake"', '"memory"', 27, ["destination.path", "no such key"]),
    ('"/lake"', '"s3://me:hunter2@bucket/"', 27, ["destination.path", "password"]),
    ("retries = 3", "retries = 1979-05-27", 28, ["destination.retries", "a date", "text"]),
    ("retries = 3", 'token = "hunter2"', 28, ["destination.token", "secret", "env:NAME"]),
    ("[spark]", "[sparc]", 30, ["sparc", 'did you mean "spark"?']),
    ("table_workers = 4", "table_workers = 0", 35, ["copy.table_workers", "at least 1"]),
    ("table_workers = 4", 'table_workers = "4"', 35, ["copy.table_workers", "a whole number, not text"]),
    ("range_bytes", "range_size", 36, ["copy.range_size", 'did you mean "range_bytes"?']),
    ('"32MiB"', '"32MB"', 36, ["32MB", "MiB"]),
    ('"32MiB"', '"1KiB"', 36, ["at least 8KiB"]),
    ('"--driver-memory 2g"', "'--conf \"a b'", 32, ["spark.submit", "no closing quotation"]),
    ('"128MiB"', "true", 40, ["stream.memory", "a whole number, not true or false"]),
    ('"500ms"', "5", 41, ["stream.min_interval", '"10s"']),
    ('"500ms"', '"5 seconds"', 41, ["5 seconds", '"10s"']),
    ('"500ms"', '"999999999999h"', 41, ["stream.min_interval", "at most 876000h"]),
    ('"128MiB"', '"9999999999TiB"', 40, ["stream.memory", "at most 1024TiB"]),
    ('"500ms"\n', '"500ms"\n[copy]\n', 42, ["not TOML"]),
    ("[[table]]", "[table]", 5, ["[[table]]"]),
]


@pytest.mark.parametrize(("right", "wrong", "line", "words"), MISTAKES)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, right: str, wrong: str, line: int, words: list[str]) -> None:
    occurrences = -1 if right == "[[table]]" else 1
    assert right in FULL
    text = FULL.replace(right, wrong, occurrences)
    if right == "[[table]]":
        text = text.replace('\n[table]\nname = "public.audit"\ninsert_only = true\n', "")
    with raises(ErrorKind.CONFIG) as caught:
        read(tmp_path, text)
    assert caught.value.message.startswith(f"{tmp_path}/shop.toml:{line}: ")
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "hunter2" not in str(caught.value)


SEVERAL = """\
idd = "Shop"
tables = ["public", "public.orders", "public.orders", 7]
exclude = ["inventory"]
[[table]]
colums = ["id", "id"]
where = " "
[source]
uri = "postgresql://me:hunter2@db/shop"
on_slot_lost = "resnyc"
failover = "yes"
[state]
url = 5
[destination]
type = "memory"
path = "/lake"
depth = 3
[spark]
submit = "--name 'a"
[copy]
table_workers = 0
range_byte = "32MB"
[stream]
memory = "1B"
min_interval = 5
"""


def test_all_mistakes_are_told_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    """Also those behind another in the same section, and in what a misspelled key was meant to say."""
    told = [words.removeprefix(f"{tmp_path}/shop.toml:") for words in validation_errors(tmp_path, SEVERAL)]
    assert [(int(words.split(":")[0]), words.split(": ")[1]) for words in told] == [
        (1, "idd"),
        (1, "idd"),
        (2, "tables"),
        (2, "tables"),
        (2, "tables"),
        (3, "exclude"),
        (4, "table.name"),
        (5, "table.colums"),
        (5, "table.colums"),
        (6, "table.where"),
        (8, "source.uri"),
        (9, "source.on_slot_lost"),
        (10, "source.failover"),
        (12, "state.url"),
        (12, "state.url"),
        (15, "destination.path"),
        (16, "destination.depth"),
        (18, "spark.submit"),
        (20, "copy.table_workers"),
        (21, "copy.range_byte"),
        (21, "copy.range_byte"),
        (23, "stream.memory"),
        (24, "stream.min_interval"),
    ]
    assert not any("hunter2" in words or "stand" in words for words in told)


def test_what_follows_from_a_mistake_is_none_of_its_own(tmp_path: Path) -> None:
    for right, wrong in (
        ('id = "shop"', 'idd = "shop"'),
        ('tables = ["public.orders"]', "tables = 3"),
        ('tables = ["public.orders"]', "table = 3"),
        ("[source]\nuri", "source"),
        ('tables = ["public.orders"]', 'tables = ["orders"]'),
        ('type = "postgres"', 'type = "postgre"'),
    ):
        assert right in MINIMAL
        assert len(validation_errors(tmp_path, MINIMAL.replace(right, wrong))) == 1, wrong


def validation_errors(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(FoundWanting) as caught:
        read(tmp_path, text)
    assert caught.value.kind is ErrorKind.CONFIG
    return [finding.problem for finding in caught.value.findings]


@pytest.mark.parametrize("name", ["source", "destination"])
def test_a_section_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(PgetlError, match=rf"shop\.toml: {name}: it is missing"):
        read(tmp_path, _without(name))


def test_a_file_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PgetlError, match="no table is named"):
        read(tmp_path, MINIMAL.replace('tables = ["public.orders"]', ""))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with raises(ErrorKind.CONFIG, match=r"none\.toml cannot be read: no such file"):
        read_pipeline_file(tmp_path / "none.toml")


def test_a_file_that_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PgetlError, match="directory"):
        read_pipeline_file(tmp_path)


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes('id = "müll"'.encode("latin-1"))
    with pytest.raises(PgetlError, match="UTF-8"):
        read_pipeline_file(path)


def _without(name: str) -> str:
    before, _, after = MINIMAL.partition(f"[{name}]")
    return before + "[" * ("[" in after) + after.partition("[")[2]
