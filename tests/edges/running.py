"""A plan run in a world of its own, and what is needed to run it again if it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from airflow_provider_pgetl.testing.servers.postgres_servers import Server
from tests.edges.checks import CheckedWorld
from tests.edges.plan import Plan


@contextmanager
def opened(plan: Plan, folder: Path, skipped: set[int]) -> Iterator[CheckedWorld]:
    """A world of its own, with three servers. A failure says what was done, and how it can be done again."""
    with ExitStack() as stack:
        settings = {"wal_sender_timeout": "20s"}
        source = stack.enter_context(Server.start(plan.source, settings))
        destination = stack.enter_context(Server.start(plan.destination))
        state = stack.enter_context(Server.start(16))
        world = CheckedWorld(plan, folder, (source, destination, state), skipped)
        stack.callback(world.pipeline.close)
        yield world


def failure_of(plan: Plan, folder: Path, skipped: set[int] | None = None) -> str | None:
    """What went wrong, with what is needed to do it again; None if all went well."""
    with opened(plan, folder, skipped or set()) as world:
        try:
            world.run()
            return None
        except (AssertionError, psycopg.Error) as error:
            return "\n".join([*world.log[-60:], world.last_said, f"{type(error).__name__}: {error}", _again(world)])


def _again(world: CheckedWorld) -> str:
    plan = world.plan
    options = (
        f"--seed {plan.seed} --tables {len(plan.names) - 1} --steps {world.at + 1}{' --lake' * (plan.lake is not None)}"
    )
    return f"again: python -m tests.edges {options}; with --show it prints the plan"
