"""A plan that is carried out and checked: what must be true of a world's tables at each check, and in the end."""

from __future__ import annotations

import re
import time
from contextlib import suppress

import psycopg

from tests.comparing import differences
from tests.edges.alters import REWRITTEN
from tests.edges.lake import lake_differences, lake_rows
from tests.edges.pipeline import State
from tests.edges.plan import (
    StopWorker,
)
from tests.edges.world import PATIENCE, World
from tests.shop import ShopTable

# The columns that are sent: without those that are generated, where the destination does not have them.
_PUBLISHED = """
select c.relname::text,
       case when r.prattrs is not null then array(
           select a.attname::text from pg_attribute a
           where a.attrelid = c.oid and a.attnum = any(r.prattrs::int2[])) end,
       pg_get_expr(r.prqual, r.prrelid)
from pg_publication_rel r join pg_class c on c.oid = r.prrelid
"""


class CheckedWorld(World):
    def _check(self, settled: bool) -> None:
        self._release(commits=True)  # no slot can be created while it is open
        if settled:
            self.settle()
            self.put_right()
            self.start_worker()
            return
        self.start_worker()
        self.marker += 1
        self._session.execute("insert into edges.marker values (%s)", [self.marker])
        self._session.commit()
        self._wait(self._marker_is_there, "what was committed arrives")
        self._wait(self._all_is_told, "each table is equal, or Errored")

    def _settled_states(self) -> dict[str, State] | None:
        """None while tables are on their way; a worker that has been refused is put right."""
        self.start_worker()
        states = self.pipeline.states()
        on_its_way = [one for one in states.values() if one.phase != "Ready" and (one.phase != "Errored" or one.timed)]
        return None if on_its_way or len(states) < len(self.plan.names) else states

    def _marker_is_there(self) -> bool:
        """Or it is Errored itself: then only the other tables tell whether all has arrived."""
        states = self._settled_states()
        if states is None:
            return False
        return states["marker"].phase == "Errored" or self._marker_at_destination() >= self.marker

    def _all_is_told(self) -> bool:
        """While the worker runs on: what only the catalog knows is looked for every few seconds."""
        states = self._settled_states()
        if states is None:
            return False
        self._judge_states(states)
        self.unequal = self._differences([name for name in self.plan.names if states[name].phase == "Ready"])
        return not self.unequal

    def _marker_at_destination(self) -> int:
        if self.plan.lake:
            return max((row[0] for row in lake_rows(self.pipeline, "marker", ["id"])), default=0)
        ((last,),) = self.pipeline.destination.execute("select coalesce(max(id), 0) from edges.marker")
        return int(last)

    def settle(self) -> None:
        """By a run that ends when it has caught up: each table is equal, or Errored with a reason."""
        self._end_worker(StopWorker())
        for _ in range(8):
            self.outage = False
            said = self.pipeline.command("run", "--until", "caught-up", timeout=PATIENCE)
            if said.code in (0, 4):
                break
            self._judge_end(said)
        self.expect(said.code in (0, 4), f"it does not catch up\n{said}")
        states = self.pipeline.states()
        self._judge_states(states)
        self._expect_equal([name for name in self.plan.names if states[name].phase == "Ready"])
        for name, state in states.items():
            if state.phase == "Ready":
                self.causes[name] = [one for one in self.causes[name] if one.generation >= state.generation]

    def put_right(self) -> None:
        """As a person does, by the remedy: tables that are Errored are copied again."""
        for name in self._errored():
            for cause in self.causes[name]:
                for statement in cause.alter.undo:
                    with suppress(psycopg.Error):
                        self.pipeline.source.execute(statement)
            self._reset(name)

    def _reset(self, name: str) -> None:
        if name not in self.pipeline.states():
            return
        said = self.pipeline.command("reset", f"edges.{name}")
        self.expect(said.code == 0, f"edges.{name} cannot be reset\n{said}")
        self.generations.pop(name, None)
        self.causes[name] = []
        self.truncated.discard(name)
        self.tell(f"reset {name}")

    def _errored(self) -> dict[str, State]:
        return {name: state for name, state in self.pipeline.states().items() if state.phase == "Errored"}

    def _judge_states(self, states: dict[str, State]) -> None:
        for name, state in states.items():
            reasons = [cause.alter.reason for cause in self.causes[name] if cause.alter.reason]
            if state.phase == "Errored":
                known = any(re.search(reason, state.reason) for reason in (*reasons, *self._look_like_rewriting(name)))
                self.expect(known, f"{name} is Errored without a cause: {state.reason}; {self._causes(name)}")
                self.tell(f"{name} is Errored: {state.reason}")
            before = self.generations.pop(name, state.generation)
            again = state.generation != before and not reasons
            self.expect(not again, f"{name} was copied anew without a cause: {self._causes(name)}")
            if state.phase == "Ready":
                self.generations[name] = state.generation

    def _look_like_rewriting(self, name: str) -> list[str]:
        """An ALTER of a column that changes no value, and files that are exchanged, both since the last look."""
        done = {cause.alter.what for cause in self.causes[name]}
        exchanged = name in self.truncated or done & {"maintenance", "wider type", "type by USING"}
        return [REWRITTEN] if "harmless" in done and exchanged else []

    def _causes(self, name: str) -> str:
        return f"known causes: {[f'{cause.alter.what} at {cause.step}' for cause in self.causes[name]]}"

    def _expect_equal(self, names: list[str]) -> None:
        """Each is Ready; what differs is told with all that was done to it."""
        deadline = time.monotonic() + 5
        while True:
            self.unequal = self._differences(names)
            if not self.unequal:
                return
            self.expect(time.monotonic() < deadline, f"Ready, and not equal\n{self._told_unequal()}")
            time.sleep(0.3)

    def _told_unequal(self) -> str:
        return "\n".join(f"{text}\n  {self._causes(name)}" for name, text in self.unequal.items())

    def _differences(self, names: list[str]) -> dict[str, str]:
        if self.plan.lake:
            return lake_differences(self.pipeline, names)
        with self.pipeline.source.connect() as session:
            published = {name: (columns, where) for name, columns, where in session.execute(_PUBLISHED)}
        found = {}
        for name in names:
            columns, where = published.get(name, (None, None))
            table = ShopTable(f"edges.{name}", "", columns=tuple(columns or ()), where=where)
            for text in differences(self.pipeline.databases, [table]):
                found[name] = text
        return found
