"""Nets that come one after the other, made few before they are merged: files are rewritten once for many.

Of two neighbours of about one size one is made (`composing`), so that each net is copied a few times only, however many
come. Where two cannot be made one, all that came before is merged first.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_pgetl.engine.destinations.delta.composing import composed
from airflow_provider_pgetl.engine.destinations.delta.merging import Changes
from airflow_provider_pgetl.engine.working_memory import WORKING

_COMPOSED_TIMES = 2


class Nets:
    """`merge` is given what is to be merged, in order. What is held is never more than `limit`, and one net."""

    def __init__(self, merge: Callable[[Changes], None], limit: int) -> None:
        self._merge = merge
        self._limit = limit
        self._held: list[Changes] = []

    @property
    def nbytes(self) -> int:
        return sum(net.nbytes for net in self._held)

    def add(self, net: Changes) -> None:
        self._held.append(net)
        while len(self._held) > 1 and self._held[-2].nbytes <= 2 * self._held[-1].nbytes:
            self._unite()
        if self.nbytes >= self._limit:
            self.settle()

    def settle(self) -> None:
        """Merge all that is held."""
        while len(self._held) > 1:
            self._unite()
        for net in self._held:
            self._merge(net)
        self._held = []

    def drop(self) -> None:
        """It counts for nothing any more."""
        self._held = []

    def _unite(self) -> None:
        """The last two become one, or else the last remains alone."""
        *before, first, then = self._held
        with WORKING.taken(_COMPOSED_TIMES * (first.nbytes + then.nbytes)):
            both = composed(first, then)
        if both is not None:
            self._held = [*before, both]
            return
        self._held = [*before, first]
        self.settle()
        self._held = [then]
