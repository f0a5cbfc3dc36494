"""The two kinds of stream: the apply stream, and the catch-up stream of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import (
    CATCHING_UP,
    FOLLOWED,
    Event,
    GroupLost,
    Refused,
    TableState,
    phase_name,
)
from airflow_provider_pgetl.engine.model.positions import START, Boundary, Counted
from airflow_provider_pgetl.engine.model.reports import Noted
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.engine.prepare import destination_checks
from airflow_provider_pgetl.engine.state import decisions
from airflow_provider_pgetl.engine.state.decisions import CEILING
from airflow_provider_pgetl.engine.stream.core import Beginning
from airflow_provider_pgetl.engine.stream.roles import ApplyCore, CatchupCore, catching_up
from airflow_provider_pgetl.engine.stream.store_thread import APPLY
from airflow_provider_pgetl.engine.stream.stream_loop import Surroundings
from airflow_provider_pgetl.engine.stream.streams import _MET, Stream


class ApplyStream(Stream):
    """The stream of the apply slot, with an `ApplyCore`."""

    def __init__(self, context: PipelineContext, shared: Surroundings) -> None:
        super().__init__(APPLY, context.apply_slot, context, shared)

    def _to_adopt(self, states: Mapping[TableName, TableState]) -> list[TableName]:
        """Returns no table: from SyncDone on every rollback leads to a new copy."""
        del states
        return []

    def _waits_for(self, stream: str, states: Mapping[TableName, TableState]) -> bool:
        """True unless the group still catches up, by a stream of its own. For a group that has ended, no other stream
        checks what was seen."""
        groups = {f"c{s.attempt}" for s in states.values() if phase_name(s.phase) in CATCHING_UP}
        return stream.removesuffix(_MET) not in groups

    def _carried(self, states: Mapping[TableName, TableState]) -> Mapping[TableName, TableState]:
        return {table: state for table, state in states.items() if phase_name(state.phase) in FOLLOWED}

    @property
    def _ceiling_key(self) -> str:
        return CEILING

    def _core(self, beginning: Beginning) -> ApplyCore:
        start, states, positions = beginning.start, beginning.states, beginning.positions
        ceiling = self.context.store.progress(CEILING) or START
        if start > ceiling:
            raise PgetlError(
                ErrorKind.SLOT_LOST,
                f"The slot {self.slot} was confirmed up to {start}, which this pipeline never did (at most {ceiling}).",
            )
        self._expect_not_restored(states, positions)
        counted = self._counted(states, positions)
        return ApplyCore(beginning, ceiling, self._pace, counted)

    def _counted(
        self, states: Mapping[TableName, TableState], positions: Mapping[TableName, Boundary]
    ) -> Mapping[TableName, Counted]:
        """Returns the counts that end at the tables' positions. They come from the store or from the last connection of
        this process, including the write that was under way when it ended."""
        marks = {table: record.high_water for table, record in self.context.store.tables().items()}
        stored = {
            table: mark.counted
            for table, mark in marks.items()
            if mark.counted is not None and table in states and states[table].attempt == mark.attempt
        }
        known = [stored, *([] if self._last is None else [self._last.counted, self._last.counted_in_flight])]
        return {t: each for found in known for t, each in found.items() if each.upto == positions.get(t)}

    def _expect_not_restored(
        self, states: Mapping[TableName, TableState], positions: Mapping[TableName, Boundary]
    ) -> None:
        lost = decisions.set_back(states, positions, self._marks)
        if lost:
            raise destination_checks.set_back(lost)


class CatchupStream(Stream):
    """The stream of one group's slot, with a `CatchupCore`."""

    def __init__(self, attempt: int, context: PipelineContext, shared: Surroundings) -> None:
        super().__init__(f"c{attempt}", context.group_slot(attempt), context, shared, attempt)
        self.attempt = attempt

    def _waits_for(self, stream: str, states: Mapping[TableName, TableState]) -> bool:
        del states
        return stream.removesuffix(_MET) == self._ceiling_key

    def _carried(self, states: Mapping[TableName, TableState]) -> Mapping[TableName, TableState]:
        return states

    @property
    def _ceiling_key(self) -> str:
        return f"c{self.attempt}"

    def _core(self, beginning: Beginning) -> CatchupCore:
        states, positions = beginning.states, beginning.positions
        states = self._recorded(states, {**self._set_back(states, positions), **self._undescribed(states)})
        mine = {table: state for table, state in states.items() if catching_up(state, self.attempt)}
        # A target that an earlier connection of this group has asked for, or was given, is void.
        states = self._recorded(states, decisions.demotions(mine))
        return CatchupCore(self.attempt, replace(beginning, states=states), self._pace)

    def _set_back(
        self, states: Mapping[TableName, TableState], positions: Mapping[TableName, Boundary]
    ) -> Mapping[TableName, Event]:
        """Returns the events for tables whose destination was set back: the changes that it has lost are no longer held
        by the slot either, so the tables are copied again."""
        events = decisions.set_back_while_catching_up(states, self.attempt, positions, self._marks)
        for table in events:
            why = "the destination has it before where it had come already: it was restored"
            self.context.observer(Noted("warning", f"{written(table)} is copied again: {why}.", table))
        return events

    def _undescribed(self, states: Mapping[TableName, TableState]) -> Mapping[TableName, Event]:
        """Returns the events for tables of which the store has no schema or no destination name: it was restored to an
        earlier state while they were copied, and then recorded the end of their copy. They are copied again."""
        routes = self.shared.routes
        mine = {table: state for table, state in states.items() if catching_up(state, self.attempt)}
        lost = [table for table in mine if routes.known_destination(table) is None]
        for table in lost:
            why = "the state says nothing of what was copied: it was restored"
            self.context.observer(Noted("warning", f"{written(table)} is copied again: {why}.", table))
        return {table: GroupLost(mine[table].generation, self.attempt) for table in lost}

    def _recorded(
        self, states: Mapping[TableName, TableState], events: Mapping[TableName, Event]
    ) -> Mapping[TableName, TableState]:
        if not events:
            return states
        answer = self.context.store.apply(events, epoch=self.shared.epoch)
        if isinstance(answer, Refused):
            raise PgetlError(ErrorKind.STORE, f"The group c{self.attempt} could not start anew: {answer.why}.")
        self.shared.store_thread.refresh()
        return {**states, **answer}

    def _to_adopt(self, states: Mapping[TableName, TableState]) -> list[TableName]:
        return [table for table, state in states.items() if catching_up(state, self.attempt)]
