"""The scanner of lines agrees with tomllib about what is there, whatever way a document is written."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.config.toml_lines import KeyPath, lines_of

# -- documents, written in every way that TOML has --------------------------------------------------------------------

_bare = st.text("abcXYZ019_-", min_size=1, max_size=4)
_words = st.text(st.sampled_from(list("ab \"'\\#[]{}=.,\n\té")), max_size=8)


def basic(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@st.composite
def keys(draw: st.DrawFn) -> str:
    name = draw(st.one_of(st.sampled_from("abc"), st.sampled_from("abc"), _bare, _words))
    literal = "'" not in name and "\n" not in name
    forms = [basic(name)]
    if name and all(letter in "abcXYZ019_-" for letter in name):
        forms.append(name)
    if literal:
        forms.append(f"'{name}'")
    return draw(st.sampled_from(forms))


@st.composite
def strings(draw: st.DrawFn) -> str:
    text = draw(_words)
    forms = [basic(text), '"""' + text.replace("\\", "\\\\").replace('"', '\\"') + '"""', '"""a""b"""""']
    if "'" not in text:
        forms += [f"'''{text}'''", f"'''\n{text}'''''"]
        if "\n" not in text:
            forms.append(f"'{text}'")
    return draw(st.sampled_from(forms))


_scalars = st.one_of(
    strings(),
    st.sampled_from(["1", "-2.5e3", "true", "inf", "0x1F", "1979-05-27 07:32:00", "07:32:00", "1_000"]),
)
_gap = st.sampled_from(["", " ", "\n", "\r\n", " # a ] } , = comment\n", "\n\n\t"])
_space = st.sampled_from(["", " ", "\t "])


@st.composite
def arrays(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    parts = [draw(_gap) + value + draw(_gap) for value in draw(st.lists(values, max_size=3))]
    end = "," if parts and draw(st.booleans()) else ""
    return f"[{','.join(parts)}{end}{draw(_gap)}]"


@st.composite
def inline_tables(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    pairs = draw(st.lists(st.tuples(keys(), values), max_size=3))
    return "{" + ", ".join(f"{key}{draw(_space)}={draw(_space)}{value}" for key, value in pairs) + draw(_space) + "}"


_values = st.recursive(_scalars, lambda inner: st.one_of(arrays(inner), inline_tables(inner)), max_leaves=5)
_dotted = st.lists(keys(), min_size=1, max_size=3).flatmap(
    lambda parts: st.sampled_from([".".join(parts), " . ".join(parts)])
)
_assignments = st.builds("{}{}={}{}".format, _dotted, _space, _space, _values)
_headers = st.one_of(st.builds("[{}]".format, _dotted), st.builds("[[ {} ]]".format, _dotted))
_statements = st.one_of(_assignments, _headers, st.just(""), st.just("# [not] = a statement"))

_ends = st.sampled_from(["\n", "\r\n", " # why\n", " \n"])


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Statements, leaving out those that tomllib does not accept after what stands before them."""
    text = ""
    for statement in draw(st.lists(_statements, max_size=12)):
        longer = text + draw(_space) + statement + draw(_ends)
        if accepted(longer):
            text = longer
    return text


def accepted(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def paths(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from paths(each, (*path, key))


@given(documents())
def test_every_key_and_element_has_a_line_and_nothing_else_has(text: str) -> None:
    assert set(lines_of(text)) == set(paths(tomllib.loads(text)))


@given(documents())
def test_a_key_stands_on_its_line_and_was_not_there_before(text: str) -> None:
    lines = text.split("\n")
    for path, line in lines_of(text).items():
        own_header = lines[line - 1].lstrip().startswith("[")  # what a longer header implied before
        assert own_header or path not in set(paths(longest_document(lines[: line - 1])))
        key = path[-1]
        assert isinstance(key, int) or key in lines[line - 1] or basic(key)[1:-1] in lines[line - 1]


@given(documents(), st.integers(0, 5))
def test_lines_move_with_the_text(text: str, more: int) -> None:
    moved = lines_of("# above\n" * more + text)
    assert moved == {path: line + more for path, line in lines_of(text).items()}


def longest_document(lines: list[str]) -> dict[str, Any]:
    """What of these lines is whole; the last statement may be cut off."""
    while lines:
        if accepted(text := "\n".join(lines)):
            return tomllib.loads(text)
        lines = lines[:-1]
    return {}


# -- lines, by hand -------------------------------------------------------------------------------------------------

DOCUMENT = '''\
# a pipeline
id = "shop"
tables = ["public.a",
    "public.b",   # and ]
    """public.
c""", 'd']
copy.table_workers = 3

[[table]]
name = "one"
[[table]]
columns = [
    "x",
    "y",
]
"where" = \'\'\'
a = 1\'\'\'
[source] # = [
uri = "env:X"
limits = { low = 1, "high.est" = 2 }
'''


def test_lines() -> None:
    assert lines_of(DOCUMENT) == {
        ("id",): 2,
        ("tables",): 3,
        ("tables", 0): 3,
        ("tables", 1): 4,
        ("tables", 2): 5,
        ("tables", 3): 6,
        ("copy",): 7,
        ("copy", "table_workers"): 7,
        ("table",): 9,
        ("table", 0): 9,
        ("table", 0, "name"): 10,
        ("table", 1): 11,
        ("table", 1, "columns"): 12,
        ("table", 1, "columns", 0): 13,
        ("table", 1, "columns", 1): 14,
        ("table", 1, "where"): 16,
        ("source",): 18,
        ("source", "uri"): 19,
        ("source", "limits"): 20,
        ("source", "limits", "low"): 20,
        ("source", "limits", "high.est"): 20,
    }


def test_a_table_with_a_header_of_its_own_has_that_line() -> None:
    assert lines_of("[a.b]\n[a]\nc = 1\n")["a",] == 2
