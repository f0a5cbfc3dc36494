"""The simulation is worth what it finds: each rule that is broken on purpose must be noticed soon."""

from __future__ import annotations

import pytest

from tests.simulation.broken_rules import RULES
from tests.simulation.mutations import SCHEDULES, caught
from tests.simulation.schedule import shrink, told

_RULES = [pytest.param(rule, marks=pytest.mark.slow if one.rare else ()) for rule, one in RULES.items()]


@pytest.mark.parametrize("rule", _RULES)
def test_a_broken_rule_is_noticed(rule: str) -> None:
    assert caught(rule) is not None, f"{SCHEDULES} schedules did not notice"


def test_what_is_noticed_can_be_read() -> None:
    """A failing schedule comes down to the few steps that it takes, and its trace ends with what is wrong."""
    rule = "the apply stream does not read during a hand-over"
    failure = caught(rule)
    assert failure is not None
    with RULES[rule].broken():
        small = shrink(failure, patience=50)
        lines = told(small).splitlines()
    assert len(small.steps) < len(failure.steps)
    assert "=> " in lines[-1]
    assert any("TargetChosen" in line for line in lines)
