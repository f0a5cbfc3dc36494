"""How declarations are checked, written as JSON, and read back: the same for every declaration in `config`.

A declaration is a frozen dataclass of plain values. Checks live with the declarations, so that a pipeline file, a DAG
and a Spark job refuse the same things with the same words; whoever knows lines of a file adds the line
(`Misdeclared.key` says where to look). Values are never quoted where they might be secret.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, NoReturn, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.quantities import LARGEST, LONGEST
from airflow_provider_pgetl.engine.spelling import suggestion

Key = tuple[str | int, ...]


class Declaration(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


D = TypeVar("D", bound=Declaration)


class Misdeclared(PgetlError):
    """A declaration that cannot stand. `key` leads to the culprit; `complaint` is what is said of it."""

    def __init__(self, key: Key, complaint: str, *, remedy: str | None = None) -> None:
        super().__init__(ErrorKind.CONFIG, f"{dotted(key)}{complaint}", remedy=remedy or "Correct the declaration.")
        self.key = key
        self.complaint = complaint


def dotted(key: Key) -> str:
    """``copy.range_bytes: ``; the number of an element of a list says little, so the complaint quotes the element."""
    names = [part for part in key if isinstance(part, str)]
    return f"{'.'.join(names)}: " if names else ""


def refuse(key: str | int | Key, complaint: str, *, remedy: str | None = None) -> NoReturn:
    raise Misdeclared(key if isinstance(key, tuple) else (key,), complaint, remedy=remedy)


# -- types ------------------------------------------------------------------------------------------------------------


def check_types(declaration: Declaration) -> None:
    """Every field holds what its annotation says; True is no number."""
    for name, hint in _hints(type(declaration)).items():
        _check(getattr(declaration, name), hint, (name,))


def check_keys(given: Mapping[str, Any], known: tuple[str, ...], *, at: Key = (), beside: tuple[str, ...] = ()) -> None:
    """Nothing is there that would be silently ignored. `beside`: what else may have been meant."""
    for name in given:
        if name not in known:
            every = (*beside, *known)
            remedy = f"Known here: {', '.join(every)}." if every else "There is nothing to set here."
            refuse((*at, name), f"there is no such key{suggestion(name, every)}", remedy=remedy)


def check_size(size: int, name: str) -> None:
    if size > LARGEST:
        refuse(name, f"it must be at most {LARGEST >> 40}TiB.")


def check_duration(seconds: float, name: str) -> None:
    if not seconds <= LONGEST:
        refuse(name, f"it must be at most {LONGEST / 3600:.0f}h, a hundred years.")


@contextmanager
def blamed_on(key: Key, *, remedy: str | None = None) -> Iterator[None]:
    """Errors about a value become errors of the key that holds it."""
    try:
        yield
    except PgetlError as error:
        inner = error.key if isinstance(error, Misdeclared) else ()
        complaint = error.complaint if isinstance(error, Misdeclared) else error.message
        raise Misdeclared((*key, *inner), complaint, remedy=remedy or error.remedy) from None


def build(cls: type[D], values: Mapping[str, Any]) -> D:
    """The declaration of these values, none of them unknown and none missing."""
    check_keys(values, tuple(field.name for field in fields(cls)))
    for field in fields(cls):
        if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
            refuse(field.name, "it is missing.", remedy=f"Add {field.name}.")
    return cls(**values)


def kind_of(value: Any) -> str:
    """What a value is, in words that suit TOML, JSON and Python alike."""
    for types, word in _KINDS:
        if isinstance(value, types):
            return word
    return "nothing" if value is None else f"a {type(value).__name__}"


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    (str, "text"),
    (int, "a whole number"),
    (float, "a number"),
    ((list, tuple), "a list"),
    (Mapping, "a table of keys"),
)
_ATOMS: Mapping[Any, tuple[type | tuple[type, ...], str]] = {
    str: (str, "text"),
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
    bool: (bool, "true or false"),
}


def _check(value: Any, hint: Any, key: Key) -> None:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):  # of a Literal and None it is the older kind
        _check_optional(value, arguments, key)
    elif origin is Literal:
        _check_choice(value, arguments, key)
    elif origin is tuple:
        _check_list(value, arguments[0], key)
    elif hint in _ATOMS:
        _check_atom(value, hint, key)
    else:
        _check_instance(value, origin or hint, key)


def _check_optional(value: Any, hints: tuple[Any, ...], key: Key) -> None:
    if value is not None:
        _check(value, next(hint for hint in hints if hint is not type(None)), key)


def _check_choice(value: Any, choices: tuple[str, ...], key: Key) -> None:
    if value not in choices or not isinstance(value, str):
        quoted = " or ".join(f'"{choice}"' for choice in choices)
        refuse(key, f"it must be {quoted}{suggestion(value, choices) if isinstance(value, str) else '.'}")


def _check_list(value: Any, element: Any, key: Key) -> None:
    if not isinstance(value, tuple):
        refuse(key, f"it must be a list, not {kind_of(value)}.")
    for index, each in enumerate(value):
        _check(each, element, (*key, index))


def _check_atom(value: Any, hint: Any, key: Key) -> None:
    types, word = _ATOMS[hint]
    if not isinstance(value, types) or (isinstance(value, bool) and hint is not bool):
        refuse(key, f"it must be {word}, not {kind_of(value)}.")


def _check_instance(value: Any, expected: type, key: Key) -> None:
    if not isinstance(value, expected):
        word = "a table of keys" if expected is Mapping else f"a {expected.__name__}"
        refuse(key, f"it must be {word}, not {kind_of(value)}.")


# -- JSON -------------------------------------------------------------------------------------------------------------


def as_json(declaration: Declaration) -> dict[str, Any]:
    """Plain dicts, lists, text, numbers, booleans and None, the same after `json.loads(json.dumps(...))`."""
    data: dict[str, Any] = plain(asdict(declaration), ())
    return data


def from_json(cls: type[D], data: Mapping[str, Any]) -> D:
    """The declaration that `as_json` was made from. Checks it as if it had just been written."""
    hints = _hints(cls)
    check_keys(data, tuple(hints))
    return build(cls, {name: _read(value, hints[name], name) for name, value in data.items()})


def plain(value: Any, key: Key) -> Any:
    """The value in the form that JSON gives back, or a complaint: what else there is would change on its way."""
    if isinstance(value, Mapping):
        return {_plain_name(name, key): plain(each, (*key, name)) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, (*key, index)) for index, each in enumerate(value)]
    if value is None or (isinstance(value, str | int | float) and not _unwritable(value)):
        return value
    what = "a number that JSON has no word for" if isinstance(value, float) else kind_of(value)
    refuse(key, f"it is {what}; use text, finite numbers, true, false, lists or tables of keys.")


def _plain_name(name: Any, key: Key) -> str:
    if not isinstance(name, str):
        refuse(key, f"it has a key that is {kind_of(name)}, not text.")
    return name


def _unwritable(value: str | float) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _read(value: Any, hint: Any, name: str) -> Any:
    if is_dataclass(hint):
        return _nested(hint, value, (name,))
    if get_origin(hint) is tuple and isinstance(value, list):
        element = get_args(hint)[0]
        if is_dataclass(element):
            return tuple(_nested(element, each, (name, index)) for index, each in enumerate(value))
        return tuple(value)
    return value


def _nested(cls: Any, data: Any, at: Key) -> Any:
    with blamed_on(at):
        if not isinstance(data, Mapping):
            refuse((), f"it must be a table of keys, not {kind_of(data)}.")
        return from_json(cls, data)


@cache
def _hints(cls: type[Declaration]) -> dict[str, Any]:
    return get_type_hints(cls)
