"""Transformers inside documents, by templates, and of one's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_pgetl.engine.config.transformers import Custom, Hstore, Json, Template, Transformer
from airflow_provider_pgetl.engine.model.tables import Column, PgType
from airflow_provider_pgetl.engine.transform.keyed import Key, hexadecimal
from airflow_provider_pgetl.engine.transform.texts import Function

_TEXT = Column("", PgType(25, "text"), "text")
"""The column as which values inside a document are transformed."""

Make = Callable[[Transformer, Column, Key | None], Function]
Hole = tuple[Any, Any]
"""A place in a parsed document: the object or list, and the key or index in it."""


# -- JSON -------------------------------------------------------------------------------------------------------------
#
# Numbers are kept as they are written: a fraction is read as a text with a mark around it, which is taken away again
# when the document is written. No JSON of Postgres contains the mark, as it is not a character.

_MARK = "\ufdd0"
_MARKED = re.compile(f'"{_MARK}([^"]*){_MARK}"')


def json_documents(given: Json, column: Column, key: Key | None, make: Make) -> Function:
    del column
    inner = {tuple(_steps(path)): make(one, _TEXT, key) for path, one in given.paths.items()}

    def of(values: pa.Array) -> pa.Array:
        documents = [_parsed(text) for text in values.to_pylist()]
        roots = [{None: document} for document in documents]
        for steps, function in inner.items():
            _fill([hole for root in roots for hole in _holes(root, (None, *steps))], function)
        return pa.array([_unparsed(root[None]) for root in roots], pa.large_string())

    return of


def _parsed(text: str) -> Any:
    if _MARK in text:
        raise ValueError("a character that is none")
    return json.loads(text, parse_float=lambda number: f"{_MARK}{number}{_MARK}")


def _unparsed(document: Any) -> str:
    return _MARKED.sub(r"\1", json.dumps(document, ensure_ascii=False))


def _steps(path: str) -> Iterator[str | None]:
    """Yields the keys of a path, and None for all elements of a list."""
    for part in path.split("."):
        name, *stars = part.split("[*]")
        yield name
        yield from (None for _ in stars)


def _holes(within: Any, steps: Sequence[str | None]) -> Iterator[Hole]:
    """Yields the places that the path leads to. The first step is that into the root. A key that is not there, a null
    and an empty list have no place; another kind of value on the way is an error, because what the path is to cover may
    be within it."""
    first, *others = steps
    if within is None:
        return
    if isinstance(within, list) and first is None:
        found: Sequence[Any] = range(len(within))
    elif isinstance(within, dict) and (first is not None or None in within):
        found = [first] if first in within else []
    else:
        raise TypeError("another kind of value on the way of a path")
    for one in found:
        if others:
            yield from _holes(within[one], others)
        else:
            yield within, one


def _fill(holes: Sequence[Hole], function: Function) -> None:
    texts = [_text(within[at]) for within, at in holes]
    made = applied(function, pa.array(texts, pa.large_string())).to_pylist()
    for (within, at), text in zip(holes, made, strict=True):
        within[at] = text


def _text(value: Any) -> str | None:
    if isinstance(value, dict | list):
        raise TypeError("an object or a list at a path")
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value).strip(_MARK)


def applied(function: Function, values: pa.Array) -> pa.Array:
    """Calls the function for the distinct values, of which none is null, and returns a result for each value."""
    coded = values.dictionary_encode()
    if not len(coded.dictionary):
        return pa.nulls(len(values), pa.large_string())
    return function(coded.dictionary).cast(pa.large_string()).take(coded.indices)


# -- hstore -----------------------------------------------------------------------------------------------------------

_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)(?:, |$)', re.DOTALL)


def hstores(given: Hstore, column: Column, key: Key | None, make: Make) -> Function:
    del column
    inner = {name: make(one, _TEXT, key) for name, one in given.keys.items()}

    def of(values: pa.Array) -> pa.Array:
        documents = [_pairs(text) for text in values.to_pylist()]
        for name, function in inner.items():
            _fill([(document, name) for document in documents if name in document], function)
        return pa.array([_hstore(document) for document in documents], pa.large_string())

    return of


def _pairs(text: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:
            raise ValueError("no hstore")
        found[_unquoted(pair[1])] = None if pair[2] is None else _unquoted(pair[2])
        at = pair.end()
    return found


def _hstore(document: Mapping[str, str | None]) -> str:
    return ", ".join(f"{_quoted(name)}=>{'NULL' if one is None else _quoted(one)}" for name, one in document.items())


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# -- templates --------------------------------------------------------------------------------------------------------


def rendered(given: Template, key: Key | None, others: Mapping[str, pa.Array], count: int) -> pa.Array:
    """Returns the text of each row. The template sees the row's columns, and nothing else."""
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
    if key is not None:
        environment.filters["hash"] = lambda text: _hash(key, text)
    template = environment.from_string(given.template)
    columns = {name: values.to_pylist() for name, values in others.items()}
    rows = ({name: column[at] for name, column in columns.items()} for at in range(count))
    return pa.array([template.render(row) for row in rows], pa.large_string())


def _hash(key: Key, text: object) -> str:
    made: str = hexadecimal(key.digests(pa.array([str(text)], pa.large_string()), "hash"), 64)[0].as_py()
    return made


# -- classes of one's own ---------------------------------------------------------------------------------------------


def custom(given: Custom, column: Column, key: Key | None) -> Function:
    del column
    instance = given.load()
    secret = b"" if key is None else key.derived(f"custom {given.path}")
    if hasattr(instance, "transform"):
        return lambda values: _expected(instance.transform(values.cast(pa.string()), secret), len(values))
    return lambda values: _expected([instance.transform_value(one, secret) for one in values.to_pylist()], len(values))


def _expected(made: Any, count: int) -> pa.Array:
    """Returns what a class has made as texts; raises if a value is missing."""
    array = made if isinstance(made, pa.Array) else pa.array(made, pa.large_string())
    if len(array) != count or array.null_count:
        raise ValueError("a value is missing")
    return array.cast(pa.large_string())
