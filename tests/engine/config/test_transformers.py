"""Rules in a pipeline file and in Python are the same objects, and what is wrong with them is said with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgetl import transformers as public
from airflow_provider_pgetl.engine.config import transformers
from airflow_provider_pgetl.engine.config.pipeline_file import PipelineFile, read_pipeline_file
from airflow_provider_pgetl.engine.config.secrets import resolve_key
from airflow_provider_pgetl.engine.config.spec import PipelineSpec, TransformSpec
from airflow_provider_pgetl.engine.config.transformers import TRANSFORMERS, Custom, Email, Hash, Json, Mask, transformer
from airflow_provider_pgetl.engine.config.validation import Misdeclared
from airflow_provider_pgetl.engine.model.errors import FoundWanting, PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName

BEFORE = """\
id = "shop"
tables = ["public.*"]
[source]
uri = "env:SOURCE"
[destination]
type = "memory"
"""
KEY = '[transformation]\nkey = "env:KEY"\n'


def read(tmp_path: Path, text: str) -> PipelineFile:
    path = tmp_path / "shop.toml"
    path.write_text(BEFORE + text)
    return read_pipeline_file(path)


def refused(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(FoundWanting) as raised:
        read(tmp_path, text)
    return [finding.problem.partition("shop.toml:")[2] for finding in raised.value.findings]


def test_rules_are_read_in_their_order_those_of_tables_first(tmp_path: Path) -> None:
    text = f"""{KEY}
[[transform]]
column = "email*"
use = "email"
domain = "example.org"
[[transform]]
table = "public.docs"
column = "body"
use = "json"
paths = {{ "a.b[*]" = "email", "c" = {{ use = "mask", kind = "name" }} }}
key = "file:/other"
on_error = "null"
[[table]]
name = "public.customers"
[[table.transform]]
column = "email"
use = "mask"
kind = "email"
"""
    spec = read(tmp_path, text).spec
    assert [(rule.table, rule.column, rule.transformer) for rule in spec.rules] == [
        ("public.customers", "email", Mask("email")),
        ("*.*", "email*", Email("example.org")),
        ("public.docs", "body", Json({"a.b[*]": Email(), "c": Mask("name")})),
    ]
    assert spec.transform_keys == {"env:KEY", "file:/other"}
    assert spec.rules[1].covers(TableName("any", "table"))
    assert spec.rules[1].applies("email_too")
    assert not spec.rules[1].applies("an email")
    assert PipelineSpec.from_json(json.loads(json.dumps(spec.as_json()))) == spec


def test_mistakes_have_their_lines(tmp_path: Path) -> None:
    text = f"""{KEY}
[[transform]]
column = "email"
use = "emial"
[[transform]]
column = "card"
use = "mask"
kind = "credit_car"
[[transform]]
colum = "x"
use = "hash"
lenght = 5
[[table]]
name = "public.a"
[[table.transform]]
column = ""
use = "hash"
[transformations]
"""
    assert [problem.partition(";")[0] for problem in refused(tmp_path, text)] == [
        '12: transform.use: there is no transformer "emial"',
        (
            '16: transform.kind: it must be "default" or "password" or "name" or "address" or "email" or "mobile" or '
            '"telephone" or "id" or "credit_card" or "url" or "pattern"'
        ),
        "17: transform.column: it is missing.",
        "24: table.transform.column: a column's name is empty.",
        "26: transformations: there is no such key",
    ]


def test_a_keyed_transformer_needs_a_key(tmp_path: Path) -> None:
    text = '[[transform]]\ncolumn = "a"\nuse = "hash"\n[[transform]]\ncolumn = "b"\nuse = "mask"\n'
    (problem,) = refused(tmp_path, text)
    assert problem == '7: transform.key: "hash" needs a key, without which its output could be guessed.'


def test_a_key_is_never_written_down(tmp_path: Path) -> None:
    text = '[transformation]\nkey = "hunter2"\n'
    (problem,) = refused(tmp_path, text)
    assert "hunter2" not in problem
    assert problem == "8: transformation.key: it must be a reference, not the key itself."


@pytest.mark.parametrize(
    ("use", "options", "words"),
    [
        ("hash", {"length": 65}, "length: it must be from 1 to 64."),
        ("hash", {"encoding": "base64", "length": 44}, "length: it must be from 1 to 43."),
        ("mask", {"kind": "pattern"}, 'pattern: it belongs to kind = "pattern", which needs it.'),
        ("mask", {"pattern": "x"}, 'pattern: it belongs to kind = "pattern", which needs it.'),
        ("mask", {"kind": "pattern", "pattern": "("}, "pattern: it is no regular expression"),
        ("email", {"domain": "a@b"}, "domain: it must be a domain, such as example.com."),
        ("phone", {"keep": 7}, "keep: it must be from 0 to 6."),
        ("first_name", {"locale": "german"}, "locale: it must be a language and a country"),
        ("integer", {"minimum": 1}, "minimum: it goes with maximum."),
        ("integer", {"minimum": 2, "maximum": 1}, "minimum: it must be at most the maximum."),
        ("integer", {"noise": 2, "bucket": 1}, "bucket: it cannot be set together with noise."),
        ("integer", {"bucket": 0}, "bucket: it must be more than zero."),
        ("float", {}, "minimum: one of minimum and maximum, noise or bucket must be set."),
        ("boolean", {}, "by: it is missing."),
        ("boolean", {"by": "id", "probability": 2.0}, "probability: it must be from 0 to 1."),
        ("choice", {"values": []}, "values: it is empty."),
        ("date", {}, "shift_days: one of shift_days, truncate, or earliest and latest must be set."),
        ("date", {"shift_days": 0}, "shift_days: it must be from 1 to 36500."),
        ("date", {"truncate": "hour"}, "truncate: it must be"),
        ("date", {"truncate": "week", "by": "id"}, "by: it goes with shift_days."),
        ("date", {"earliest": "2000-01-01"}, "latest: it goes with earliest."),
        ("date", {"earliest": "2000-01-02", "latest": "2000-01-01"}, "earliest: it must not be after the latest."),
        ("timestamp", {"earliest": "soon", "latest": "2000-01-01"}, "earliest: it must be a date"),
        ("string", {"alphabet": "aa"}, "alphabet: a character is in it twice."),
        ("string", {"length": 0}, "length: it must be from 1 to 1000000."),
        ("ip", {"v4": 33}, "v4: it must be from 0 to 32."),
        ("json", {"paths": {}}, "paths: it must be a table of keys, each with a transformer."),
        ("json", {"paths": {"a..b": "hash"}}, "paths.a..b: it is no path"),
        ("json", {"paths": {"a": "integer"}}, 'paths.a: "integer" cannot be used inside a document'),
        ("json", {"paths": {"a": 5}}, "paths.a: it must name a transformer"),
        ("hstore", {"keys": {"a": "hahs"}}, 'keys.a.use: there is no transformer "hahs"; did you mean "hash"?'),
        ("template", {"template": "{{ x"}, "template: it is no Jinja template"),
        ("keep", {"length": 1}, "length: there is no such key"),
    ],
)
def test_options_that_are_not_valid(use: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(Misdeclared) as raised:
        transformer(use, options)
    assert raised.value.message.startswith(words)


def test_every_transformer_can_be_made_again_from_its_name_and_options() -> None:
    for made in (Hash(length=5), Mask("pattern", "x"), Json({"a": Mask("name")}), Custom("a.b:C", {"d": 1})):
        use, options = transformers.used_name(made)
        assert TransformSpec("c", use, options=options).transformer == made


def test_all_transformers_are_public() -> None:
    assert {getattr(public, name) for name in public.__all__} == {*TRANSFORMERS.values(), Custom}


def test_what_a_template_reads() -> None:
    made = transformer("template", {"template": "{{ a }} {% for x in b %}{{ x }}{% endfor %} {{ c | hash }}"})
    assert made.reads == ("a", "b", "c")
    assert made.is_keyed
    assert not transformer("template", {"template": "{{ a }}"}).is_keyed


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "The environment variable KEY is not set."),
        ("short", "The key env:KEY is shorter than 16 characters, and could be guessed."),
    ],
)
def test_keys_that_are_no_keys(value: str | None, words: str) -> None:
    with pytest.raises(PgetlError) as raised:
        resolve_key("env:KEY", {} if value is None else {"KEY": value})
    assert raised.value.message == words
    assert "short" not in raised.value.message or "shorter" in raised.value.message


def test_a_key_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a key that is long enough\n")
    assert resolve_key(f"file:{tmp_path}/key") == "a key that is long enough"
