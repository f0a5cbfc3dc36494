"""How declarations are checked, written as JSON, and read back: the same for every declaration in `spec`.

A declaration is a frozen dataclass of plain values. Checks live with the declarations, so that a pipeline file, a DAG
and a Spark job refuse the same things with the same words; whoever knows lines of a file adds the line
(`Misdeclared.key` says where to look). Values are never quoted where they might be secret.
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

# -- What somebody who wrote a name wrongly may have meant. ------------------------------------------------------------


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that looks most like this one, if one looks like it at all. Case is no difference."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    found = get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of a sentence: ``; did you mean "orders"?``, or a full stop. What has quotes itself gets no more."""
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


# -- Collecting what is wrong with a declaration, so that all of it is told at once. -----------------------------------
#
# A declaration refuses the first thing that is wrong with it. Here it is made again without that, with a stand-in in
# its place, until nothing more is refused: so the rest is judged as well. Nobody works with stand-ins: where a mistake
# was noted, there is no pipeline.

T = TypeVar("T")

STAND_IN = "env:STAND_IN"
_STAND_INS: Mapping[str, str] = {"id": "stand_in", "name": '"stand"."in"', "uri": STAND_IN}


class ValidationErrors:
    """In the order in which they were met."""

    def __init__(self) -> None:
        self.found: list[Misdeclared] = []
        self._written: dict[Key, Key] = {}

    def noted(self, at: Key, read: Callable[[], T]) -> T | None:
        """What is read; None if it is refused, which is noted as refused at that key."""
        try:
            with blamed_on(at):
                return read()
        except Misdeclared as mistake:
            self.found.append(mistake)
            return None

    def named(self, values: Mapping[str, Any], known: Collection[str], at: Key = ()) -> dict[str, Any]:
        """The values under known names. One under a name that was misspelled counts as what was meant."""
        taken = {name: value for name, value in values.items() if name in known}
        for name in values.keys() - taken.keys():
            self.noted(at, partial(check_keys, {name: None}, tuple(known)))
            meant = nearest(name, known)
            if meant is not None and meant not in taken:
                taken[meant] = values[name]
                self._written[*at, meant] = (*at, name)
        return taken

    def written(self, key: Key) -> Key:
        """The key as it is misspelled."""
        for length in range(len(key), 0, -1):
            if key[:length] in self._written:
                return self._written[key[:length]] + key[length:]
        return key

    def built(self, cls: type[D], values: Mapping[str, Any], at: Key = ()) -> D | None:
        """The declaration, perhaps with stand-ins; None where it is not to be had even so."""
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
    """Take the culprit out; where something must be, put a stand-in there."""
    name, inner = str(key[0]), key[1:]
    value = values.get(name)
    if inner and isinstance(inner[0], int) and isinstance(value, tuple):
        values[name] = tuple(_of_kind(one, at) if at == inner[0] else one for at, one in enumerate(value))
    elif inner and isinstance(value, Mapping):
        values[name] = dict(value)
        _heal(values[name], inner)
    elif name in _STAND_INS:
        values[name] = _STAND_INS[name]
    else:
        values.pop(name, None)


def _of_kind(one: Any, at: int) -> Any:
    """An element like this one that nothing can be said against. Names of tables and of columns may be the same."""
    name = f'"stand-in"."{at}"'
    return name if isinstance(one, str) or not hasattr(one, "name") else type(one)(name)
