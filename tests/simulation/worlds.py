"""What may happen in a schedule. In the world "any" its seed decides; the others lean towards one hard place each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from tests.simulation import people
from tests.simulation.world import Scenario

_NEEDED = {"restore": "backup", "source set back": "source backup", "state restored": "state backup"}

WORLDS: dict[str, Mapping[str, Any]] = {
    "any": {},
    "restored destination": {"exactly_once": True, "mishaps": ("backup", "restore", "crash")},
    "marks while the store is away": {
        "exactly_once": True,
        "mishaps": ("backup", "restore"),
        "trouble": 0.05,
        "troubled": ("store",),
        "lost": 0.15,
        "refused": 0.25,
    },
    "slots that repeat": {
        "exactly_once": True,
        "tables": 3,
        "copies": 3,
        "workers": 1,
        "one_machine": True,
        "mishaps": ("cut", "crash", "pause of a thread"),
        "operator": 0.05,
    },
    "source crashes": {
        "exactly_once": True,
        "mishaps": ("source crash", "source crash", "crash", "pause of a thread"),
        "operator": 0.04,
        "trouble": 0.05,
    },
    "tables that go back": {
        "exactly_once": True,
        "tables": 2,
        "copies": 2,
        "operator": 0.08,
        "trouble": 0.05,
        "mishaps": ("poison", "pause of a writer"),
    },
    "streams that break": {"exactly_once": True, "trouble": 0.1, "mishaps": ("cut",), "operator": 0.02},
    "late answers of the store": {
        "exactly_once": True,
        "troubled": ("store",),
        "late": 0.2,
        "trouble": 0.08,
        "arrivals": 0.015,
        "mishaps": ("cut",),
    },
    "late copies": {
        "exactly_once": True,
        "troubled": ("store", "destination"),
        "late": 0.15,
        "lost": 0.05,
        "operator": 0.04,
        "mishaps": ("crash of a copy", "pause of a process"),
    },
    "late writes": {
        "exactly_once": True,
        "tables": 2,
        "troubled": ("destination",),
        "late": 0.2,
        "doubled": 0.1,
        "operator": 0.08,
        "arrivals": 0.015,
        "mishaps": ("pause of a writer", "cut"),
    },
    "no fences": {
        "exactly_once": False,
        "workers": 1,
        "tables": 2,
        "operator": 0.06,
        "mishaps": ("pause of a writer",),
    },
    "leases that lapse": {
        "exactly_once": True,
        "workers": 2,
        "mishaps": ("lease lapses", "pause of a process", "pause of a thread", "crash"),
    },
    "truncates during copies": {
        "truncates": 0.3,
        "mishaps": ("crash of a copy", "pause of a thread"),
        "operator": 0.04,
    },
    "truncates without fences": {
        "exactly_once": False,
        "workers": 1,
        "truncates": 0.3,
        "mishaps": ("crash", "pause of a process"),
    },
    "bounded runs": {"bounded": True, "mishaps": ("outage", "crash of a copy")},
    "ends as they should be": {"mishaps": ("stop", "pause of a writer"), "workers": 2, "exactly_once": True},
    "back-pressure": {"memory": 300, "mishaps": ("pause of a writer", "outage")},
    "source shuts down": {
        "mishaps": ("source shutdown", "source shutdown", "outage", "poison"),
        "trouble": 0.05,
    },
    "publications that change": {"exactly_once": True, "mishaps": ("publication changed", "crash of a copy", "cut")},
    "tables that are altered": {
        "exactly_once": True,
        "mishaps": ("identity altered", "column exchanged", "crash", "cut", "pause of a writer"),
        "operator": 0.02,
    },
    "source set back": {"exactly_once": True, "mishaps": ("source backup", "source set back", "cut", "crash")},
    "source set back, to be told": {
        "exactly_once": True,
        "on_slot_lost": "error",
        "mishaps": ("source backup", "source set back", "cut", "crash"),
    },
    "state restored": {
        "exactly_once": True,
        "mishaps": ("state backup", "state restored", "crash", "pause of a process"),
        "trouble": 0.04,
        "operator": 0.02,
    },
    "pauses": {
        "mishaps": ("pipeline paused", "pipeline paused", "crash", "cut", "pause of a thread"),
        "trouble": 0.05,
        "operator": 0.02,
    },
    "slots lost": {"mishaps": ("apply slot lost", "apply slot replaced", "group slot lost", "crash")},
}


def scenario_of(seed: int) -> Scenario:
    """Small worlds, and some that are nearly peaceful: they reach the deep states more often."""
    random = Random(seed)
    servers = ("store", "destination", "source")
    troubled = random.choice([servers, servers, ("store",), ("destination",), ("source",)])
    rough = random.choice([0.0, 0.3, 1.0, 2.0] if len(troubled) > 1 else [1.0, 3.0, 5.0])
    plain = Scenario(tables=random.choice([1, 2, 3, 3, 4]), copies=random.choice([1, 2, 3]))
    exactly_once = random.random() < 0.85
    excluded = people.ASKED_FOR if exactly_once else people.ASKED_FOR | people.FENCED
    possible = sorted(people.MISHAPS.keys() - excluded)
    mishaps = random.sample(possible, random.randint(1, 4))
    return replace(
        plain,
        exactly_once=exactly_once,
        workers=2 if exactly_once else 1,
        one_machine=random.random() < 0.7,
        troubled=troubled,
        operator=random.choice([0.0, 0.01, 0.04]),
        mishaps=(*mishaps, *(_NEEDED[mishap] for mishap in mishaps if mishap in _NEEDED)),
        steps=random.choice([600, 1500, 3000]),
        lost=plain.lost * rough,
        refused=plain.refused * rough,
        late=plain.late * rough,
        doubled=plain.doubled * rough,
    )
