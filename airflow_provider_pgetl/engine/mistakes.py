"""Collecting what is wrong with a declaration, so that all of it is told at once.

A declaration refuses the first thing that is wrong with it. Here it is made again without that, with a stand-in in its
place, until nothing more is refused: so the rest is judged as well. Nobody works with stand-ins: where a mistake was
noted, there is no pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from airflow_provider_pgetl.engine import declaring
from airflow_provider_pgetl.engine.declaring import D, Key, Misdeclared
from airflow_provider_pgetl.engine.spelling import nearest

T = TypeVar("T")

STAND_IN = "env:STAND_IN"
_STAND_INS: Mapping[str, str] = {"id": "stand_in", "name": '"stand"."in"', "uri": STAND_IN}


class Mistakes:
    """In the order in which they were met."""

    def __init__(self) -> None:
        self.found: list[Misdeclared] = []
        self._written: dict[Key, Key] = {}

    def noted(self, at: Key, read: Callable[[], T]) -> T | None:
        """What is read; None if it is refused, which is noted as refused at that key."""
        try:
            with declaring.blamed_on(at):
                return read()
        except Misdeclared as mistake:
            self.found.append(mistake)
            return None

    def named(self, values: Mapping[str, Any], known: Collection[str], at: Key = ()) -> dict[str, Any]:
        """The values under known names. One under a name that was misspelled counts as what was meant."""
        taken = {name: value for name, value in values.items() if name in known}
        for name in values.keys() - taken.keys():
            self.noted(at, partial(declaring.check_keys, {name: None}, tuple(known)))
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
                return declaring.build(cls, healed)
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
