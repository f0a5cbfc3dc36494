"""Mutations: rules of the protocol, each broken on purpose in the real code, by name.

A mutation is a context: inside it the rule does not hold. `test_it_bites` runs schedules inside until one fails; where
the rule matters only in rare company, `scenario` says in which. The rules are in `broken_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.simulation.schedule import Failure, run_seed

Context = Callable[[], AbstractContextManager[Any]]
SCHEDULES = 1000


@dataclass(frozen=True)
class Mutation:
    """What breaks a rule, and the scenario in which that is felt. `known`: a seed with which it was noticed, from which
    on others are tried; every change of the shell makes other schedules of the same seeds, and
    `python -m tests.simulation --known` finds seeds again. `rare`: it takes many."""

    broken: Context
    known: int
    rare: bool
    scenario: Mapping[str, Any]


MUTATIONS: dict[str, Mutation] = {}


def breaks(rule: str, known: int, rare: bool = False, **scenario: Any) -> Callable[[Context], Context]:
    def register(broken: Context) -> Context:
        MUTATIONS[rule] = Mutation(broken, known, rare, scenario)
        return broken

    return register


def caught(rule: str) -> Failure | None:
    """The first failure, among the schedules from the known seed on, while the rule is broken."""
    mutation = MUTATIONS[rule]
    with mutation.broken():
        failures = (run_seed(mutation.known + number, **mutation.scenario) for number in range(SCHEDULES))
        return next((failure for failure in failures if failure is not None), None)


def all_of(*patches: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    @contextmanager
    def entered() -> Iterator[None]:
        with ExitStack() as stack:
            for each in patches:
                stack.enter_context(each)
            yield

    return entered()
