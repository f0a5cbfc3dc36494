"""Requests about many tables, several at once: each is a wait for the object store, and no table knows of another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
A = TypeVar("A")

_FEW = 4
_AT_ONCE = 16


def each(function: Callable[[T], A], items: Iterable[T], at_once: int = _AT_ONCE) -> list[A]:
    """The answers in the order of the items. Raises the first failure, when all calls have ended."""
    asked = list(items)
    if len(asked) < _FEW:
        return [function(item) for item in asked]
    with ThreadPoolExecutor(at_once, "pgetl delta") as threads:
        return list(threads.map(function, asked))
