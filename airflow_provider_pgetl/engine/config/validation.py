"""Checks of declarations, and their form as JSON: the same for every declaration in `spec`.

A declaration is a frozen dataclass of plain values. Each declaration checks itself, so that a pipeline file, a DAG and
a Spark job refuse the same values with the same messages; the reader of a file adds the line (`Misdeclared.key` says
where to look). Values that might be secret are never quoted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields, is_dataclass
from difflib import get_close_matches
from functools import cache, partial
from types import UnionType
from typing import Any, ClassVar, Literal, NoReturn, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.quantities import LARGEST, LONGEST

# -- Suggestions for a misspelled name. --------------------------------------------------------------------------------


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Returns the known word that is most similar to this one, None if no word is similar. Case makes no difference."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    found = get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """Returns the end of a sentence: ``; did you mean "orders"?``, or a full stop. A word with quotes in it is not
    quoted again."""
    meant = nearest(word, known)
    if meant is None:
        return "."
    return f"; did you mean {meant}?" if '"' in meant else f'; did you mean "{meant}"?'


# -- Validation. -------------------------------------------------------------------------------------------------------

Key = tuple[str | int, ...]


class Declaration(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


D = TypeVar("D", bound=Declaration)


class Misdeclared(PgetlError):
    """A declaration that is not valid. `key` leads to the invalid value; `complaint` says what is wrong with it."""

    def __init__(self, key: Key, complaint: str, *, remedy: str | None = None) -> None:
        super().__init__(ErrorKind.CONFIG, f"{dotted(key)}{complaint}", remedy=remedy or "Correct the declaration.")
        self.key = key
        self.complaint = complaint


def dotted(key: Key) -> str:
    """Returns ``copy.range_bytes: ``. Numbers of list elements are left out: they say little, so the complaint quotes
    the element."""
    names = [part for part in key if isinstance(part, str)]
    return f"{'.'.join(names)}: " if names else ""


def refuse(key: str | int | Key, complaint: str, *, remedy: str | None = None) -> NoReturn:
    raise Misdeclared(key if isinstance(key, tuple) else (key,), complaint, remedy=remedy)


# -- types ------------------------------------------------------------------------------------------------------------


def check_types(declaration: Declaration) -> None:
    """Raises an error unless every field holds what its annotation says; True is not a number."""
    for name, hint in _hints(type(declaration)).items():
        _check(getattr(declaration, name), hint, (name,))


def check_keys(given: Mapping[str, Any], known: tuple[str, ...], *, beside: tuple[str, ...] = ()) -> None:
    """Raises an error for a key that would be silently ignored. `beside`: other keys that may have been meant."""
    for name in given:
        if name not in known:
            every = (*beside, *known)
            remedy = f"Known here: {', '.join(every)}." if every else "There is nothing to set here."
            refuse(name, f"there is no such key{suggestion(name, every)}", remedy=remedy)


def check_size(size: int, name: str) -> None:
    if size > LARGEST:
        refuse(name, f"it must be at most {LARGEST >> 40}TiB.")


def check_duration(seconds: float, name: str) -> None:
    if not seconds <= LONGEST:
        refuse(name, f"it must be at most {LONGEST / 3600:.0f}h, a hundred years.")


@contextmanager
def blamed_on(key: Key, *, remedy: str | None = None) -> Iterator[None]:
    """Turns errors about a value into errors of the key that holds the value."""
    try:
        yield
    except PgetlError as error:
        inner = error.key if isinstance(error, Misdeclared) else ()
        complaint = error.complaint if isinstance(error, Misdeclared) else error.message
        raise Misdeclared((*key, *inner), complaint, remedy=remedy or error.remedy) from None


def build(cls: type[D], values: Mapping[str, Any]) -> D:
    """Returns the declaration of these values. Raises an error if one of them is unknown or one is missing."""
    check_keys(values, tuple(field.name for field in fields(cls)))
    for field in fields(cls):
        if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
            refuse(field.name, "it is missing.", remedy=f"Add {field.name}.")
    return cls(**values)


def kind_of(value: Any) -> str:
    """Returns what kind of value it is, in words that suit TOML, JSON and Python alike."""
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
    if origin in (UnionType, Union):  # a union of a Literal and None is a typing.Union
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
    """Returns plain dicts, lists, text, numbers, booleans and None, which `json.loads(json.dumps(...))` returns
    unchanged."""
    data: dict[str, Any] = plain(asdict(declaration), ())
    return data


def from_json(cls: type[D], data: Mapping[str, Any]) -> D:
    """Returns the declaration from which `as_json` made the data. It is checked like a new one."""
    hints = _hints(cls)
    check_keys(data, tuple(hints))
    return build(cls, {name: _read(value, hints[name], name) for name, value in data.items()})


def plain(value: Any, key: Key) -> Any:
    """Returns the value in the form in which JSON returns it. Raises an error for any other value, which JSON would
    change."""
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
    return {name: hint for name, hint in get_type_hints(cls).items() if get_origin(hint) is not ClassVar}


# -- Collecting the errors of a declaration, so that all are reported at once. -----------------------------------------
#
# A declaration refuses the first value that is not valid. Here it is made again without that value, or with a stand-in
# for it, until no more is refused, so that the other values are checked as well. Stand-ins are never used: where an
# error was noted, there is no pipeline.

T = TypeVar("T")

STAND_IN = "env:STAND_IN"
_STAND_INS: Mapping[str, str] = {"id": "stand_in", "key": STAND_IN, "name": '"stand"."in"', "uri": STAND_IN}


class ValidationErrors:
    """The errors, in the order in which they were found."""

    def __init__(self) -> None:
        self.found: list[Misdeclared] = []
        self._written: dict[Key, Key] = {}

    def noted(self, at: Key, read: Callable[[], T]) -> T | None:
        """Returns what `read` returns; None if it raises an error, which is noted under the key `at`."""
        try:
            with blamed_on(at):
                return read()
        except Misdeclared as mistake:
            self.found.append(mistake)
            return None

    def named(self, values: Mapping[str, Any], known: Collection[str], at: Key = ()) -> dict[str, Any]:
        """Returns the values under known names, and notes unknown names. A value under a misspelled name counts as that
        of the name that was meant."""
        taken = {name: value for name, value in values.items() if name in known}
        for name in values.keys() - taken.keys():
            self.noted(at, partial(check_keys, {name: None}, tuple(known)))
            meant = nearest(name, known)
            if meant is not None and meant not in taken:
                taken[meant] = values[name]
                self._written[*at, meant] = (*at, name)
        return taken

    def written(self, key: Key) -> Key:
        """Returns the key as it was written, with its misspellings."""
        for length in range(len(key), 0, -1):
            if key[:length] in self._written:
                return self._written[key[:length]] + key[length:]
        return key

    def built(self, cls: type[D], values: Mapping[str, Any], at: Key = ()) -> D | None:
        """Returns the declaration, perhaps with stand-ins; None if it is not valid even with these."""
        healed = self.named(values, [field.name for field in fields(cls)], at)
        told: set[Key] = set()
        while True:
            try:
                return build(cls, healed)
            except Misdeclared as mistake:
                if mistake.key in told:
                    return None
                told.add(mistake.key)
                self.found.append(Misdeclared((*at, *mistake.key), mistake.complaint, remedy=mistake.remedy))
                _heal(healed, mistake.key)


def _heal(values: dict[str, Any], key: Key) -> None:
    """Removes the invalid value, and puts a stand-in in its place where a value is required."""
    name, inner = str(key[0]), key[1:]
    value = values.get(name)
    if inner and isinstance(inner[0], int) and isinstance(value, tuple):
        values[name] = tuple(
            _of_kind(one, at) if at == inner[0] else one
            for at, one in enumerate(value)
            if at != inner[0] or _has_stand_in(one)
        )
    elif inner and isinstance(value, Mapping):
        values[name] = dict(value)
        _heal(values[name], inner)
    elif name in _STAND_INS:
        values[name] = _STAND_INS[name]
    else:
        values.pop(name, None)


def _has_stand_in(one: Any) -> bool:
    return isinstance(one, str) or hasattr(one, "name")


def _of_kind(one: Any, at: int) -> Any:
    """Returns a valid element of the same kind as this one. The same name serves for a table and for a column."""
    name = f'"stand-in"."{at}"'
    return name if isinstance(one, str) else type(one)(name)
