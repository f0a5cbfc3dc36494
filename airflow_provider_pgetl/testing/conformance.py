"""The suite that every destination of pgetl passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from airflow_provider_pgetl.engine.changes.batch import EventBatch, TablePosition, Truncate
from airflow_provider_pgetl.engine.destinations.fencing import rows_of
from airflow_provider_pgetl.engine.destinations.protocol import (
    AtomicCopy,
    Destination,
    Inspecting,
    Misses,
    Positions,
    RangeCopy,
    RangeRows,
    Stamp,
)
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing.builders import ABSENT, Line, Replica, record_batch, sample_schema

ANN: Line = (b"1", b"Ann", b"long")
BOB: Line = (b"2", b"Bob", None)
CAT: Line = (b"3", b"", b"\ttab\nline\\N")


class DestinationConformance:
    """Derive a class from this one, implement `open` and `read`, and let pytest collect it."""

    def open(self) -> Destination:
        """Returns a new destination object, each time over the same data."""
        raise NotImplementedError

    def read(self, table: TableName) -> Iterable[Sequence[Any]]:
        """Returns the rows that a reader of the table sees now: id, name and note, each in Postgres' text form, or
        None."""
        raise NotImplementedError

    @pytest.fixture
    def replica(self) -> Iterator[Replica]:
        destination = self.open()
        yield Replica(destination)
        destination.shutdown()

    @pytest.fixture
    def bag(self) -> Iterator[Replica]:
        """A table without a key."""
        destination = self.open()
        yield Replica(destination, sample_schema(key=(), identity="full"))
        destination.shutdown()

    def rows(self, replica: Replica) -> Counter[tuple[str | None, ...]]:
        return Counter(tuple(map(_as_text, row)) for row in self.read(replica.schema.table))

    # -- the contract of every destination

    def test_has_the_contract(self, replica: Replica) -> None:
        assert isinstance(replica.destination, Destination)
        assert replica.destination.name

    def test_rows_of_a_copy_arrive(self, replica: Replica) -> None:
        replica.destination.write_table_rows(replica.schema, record_batch(replica.schema, []))
        assert not self.rows(replica)
        replica.destination.write_table_rows(replica.schema, record_batch(replica.schema, [ANN, BOB]))
        replica.destination.write_table_rows(replica.schema, record_batch(replica.schema, [CAT]))
        assert self.rows(replica) == _lines(ANN, BOB, CAT)

    def test_a_table_dropped_for_a_copy_starts_empty(self, replica: Replica) -> None:
        replica.create(ANN)
        replica.destination.drop_table_for_copy(replica.schema)
        replica.destination.drop_table_for_copy(replica.schema)
        replica.destination.write_table_rows(replica.schema, record_batch(replica.schema, [BOB]))
        assert self.rows(replica) == _lines(BOB)

    def test_rows_are_inserted_updated_and_deleted(self, replica: Replica) -> None:
        replica.create(ANN, BOB)
        wire = replica.wire().insert(CAT).update((b"1", b"Anna", None)).delete(BOB)
        replica.apply(wire.take())
        assert self.rows(replica) == _lines((b"1", b"Anna", None), CAT)

    def test_one_row_may_change_many_times_in_a_step(self, replica: Replica) -> None:
        replica.create(ANN)
        wire = replica.wire().delete(ANN).insert((b"1", b"new", None)).update((b"1", b"newer", b"n"))
        wire.insert(BOB).delete(BOB).insert(CAT).update((b"3", b"c", ABSENT))
        replica.apply(wire.take())
        assert self.rows(replica) == _lines((b"1", b"newer", b"n"), (b"3", b"c", CAT[2]))

    def test_an_absent_value_stays_as_it_was(self, replica: Replica) -> None:
        replica.create(ANN, BOB)
        wire = replica.wire().update((b"1", b"Anna", ABSENT)).update((b"2", ABSENT, b"note"))
        replica.apply(wire.take())
        assert self.rows(replica) == _lines((b"1", b"Anna", b"long"), (b"2", b"Bob", b"note"))

    def test_a_moved_row_keeps_what_was_not_sent(self, replica: Replica) -> None:
        replica.create(ANN)
        replica.apply(replica.wire().update((b"9", b"Anna", ABSENT), old=ANN).take())
        assert self.rows(replica) == _lines((b"9", b"Anna", b"long"))

    def test_keys_are_swapped(self, replica: Replica) -> None:
        replica.create(ANN, BOB)
        wire = replica.wire()
        wire.update((b"-1", b"Ann", ABSENT), old=ANN)
        wire.update((b"1", b"Bob", ABSENT), old=BOB)
        wire.update((b"2", b"Ann", ABSENT), old=(b"-1", b"Ann", b"long"))
        replica.apply(wire.take())
        assert self.rows(replica) == _lines((b"1", b"Bob", None), (b"2", b"Ann", b"long"))

    def test_a_truncate_separates_what_is_before_from_what_is_after(self, replica: Replica) -> None:
        replica.create(ANN)
        before, after = replica.wire().insert(BOB).take(), replica.wire().insert(CAT).take()
        replica.apply(before, Truncate(replica.schema, CommitLsn(1), 2), after)
        assert self.rows(replica) == _lines(CAT)

    def test_steps_take_effect_in_their_order(self, replica: Replica) -> None:
        replica.create()
        steps = [replica.wire().insert(ANN).take()]
        steps += [replica.wire().update((b"1", b"%d" % at, ABSENT)).take() for at in range(5)]
        replica.apply(*steps)
        assert self.rows(replica) == _lines((b"1", b"4", b"long"))

    def test_many_rows_in_one_step(self, replica: Replica) -> None:
        replica.create(ANN)
        wire = replica.wire()
        for at in range(2, 502):
            wire.insert((b"%d" % at, b"n%d" % at, b"x" * at))
        for at in range(2, 502, 2):
            wire.update((b"%d" % at, b"even", ABSENT))
        for at in range(2, 502, 5):
            wire.delete((b"%d" % at, None, None))
        replica.apply(wire.take())
        kept = [at for at in range(2, 502) if at % 5 != 2]
        assert self.rows(replica) == _lines(
            ANN, *((b"%d" % at, b"n%d" % at if at % 2 else b"even", b"x" * at) for at in kept)
        )

    def test_a_batch_that_comes_twice_counts_once(self, replica: Replica) -> None:
        replica.create(ANN, BOB)
        batch = replica.batch(replica.wire().update((b"1", b"Anna", ABSENT)).delete(BOB).insert(CAT).take())
        replica.destination.write_events(batch)
        replica.destination.write_events(batch)
        assert self.rows(replica) == _lines((b"1", b"Anna", b"long"), CAT)

    def test_without_a_key_one_equal_row_goes_for_each_delete(self, bag: Replica) -> None:
        bag.create(ANN, ANN, ANN, BOB, BOB)
        bag.apply(bag.wire().delete(ANN).update((b"7", b"Bob", None), old=BOB).insert(ANN).delete(ANN).take())
        assert self.rows(bag) == _lines(ANN, ANN, BOB, (b"7", b"Bob", None))

    def test_a_reopened_destination_goes_on(self, replica: Replica) -> None:
        replica.create(ANN)
        replica.destination.shutdown()
        replica.destination = self.open()
        replica.apply(replica.wire().insert(BOB).take())
        assert self.rows(replica) == _lines(ANN, BOB)

    # -- copies that appear at once

    def test_a_copy_is_unseen_until_it_is_published(self, replica: Replica) -> None:
        copying = _able(replica, AtomicCopy)
        replica.create(ANN)
        copying.begin_copy(replica.target, 2)
        replica.stage(2, 0, [BOB])
        assert self.rows(replica) == _lines(ANN)
        copying.finish_copy(replica.target, 2, Boundary(50))
        copying.finish_copy(replica.target, 2, Boundary(50))
        assert self.rows(replica) == _lines(BOB)

    def test_an_aborted_copy_leaves_the_table_as_it_was(self, replica: Replica) -> None:
        copying = _able(replica, AtomicCopy)
        replica.create(ANN)
        copying.begin_copy(replica.target, 2)
        replica.stage(2, 0, [BOB])
        copying.abort_copy(replica.target, 2)
        copying.abort_copy(replica.target, 2)
        assert self.rows(replica) == _lines(ANN)
        with pytest.raises(Fenced):
            copying.finish_copy(replica.target, 2, Boundary(50))

    def test_a_copy_of_which_something_is_gone_is_not_published(self, replica: Replica) -> None:
        """The destination was restored while the copy was written."""
        copying = _able(replica, AtomicCopy)
        replica.create(ANN)
        copying.begin_copy(replica.target, 2)
        replica.stage(2, 0, [BOB])
        with pytest.raises(PgetlError, match="restored") as refused:
            copying.finish_copy(replica.target, 2, Boundary(50), 2)
        assert refused.value.kind is ErrorKind.COPY_DIED
        assert self.rows(replica) == _lines(ANN)
        copying.finish_copy(replica.target, 2, Boundary(50), 1)
        assert self.rows(replica) == _lines(BOB)

    def test_an_empty_table_comes_to_exist(self, replica: Replica) -> None:
        copying = _able(replica, AtomicCopy)
        copying.begin_copy(replica.target, 1)
        copying.finish_copy(replica.target, 1, Boundary(50))
        assert not self.rows(replica)

    def test_a_superseded_attempt_publishes_nothing(self, replica: Replica) -> None:
        copying = _able(replica, AtomicCopy)
        copying.begin_copy(replica.target, 1)
        replica.stage(1, 0, [ANN])
        copying.begin_copy(replica.target, 2)
        replica.stage(2, 0, [BOB])
        for late in (1, 0):
            with pytest.raises(Fenced):
                copying.begin_copy(replica.target, late)
            with pytest.raises(Fenced):
                copying.finish_copy(replica.target, late, Boundary(40))
        copying.abort_copy(replica.target, 1)
        copying.finish_copy(replica.target, 2, Boundary(50))
        assert self.rows(replica) == _lines(BOB)

    def test_an_attempt_that_began_twice_keeps_what_it_has(self, replica: Replica) -> None:
        copying = _able(replica, AtomicCopy)
        copying.begin_copy(replica.target, 1)
        replica.stage(1, 0, [ANN])
        copying.begin_copy(replica.target, 1)
        copying.finish_copy(replica.target, 1, Boundary(50))
        copying.begin_copy(replica.target, 1)
        assert self.rows(replica) == _lines(ANN)

    # -- ranges

    def test_a_range_that_comes_twice_is_stored_once(self, replica: Replica) -> None:
        copying = self._copying_by_ranges(replica)
        copying.begin_copy(replica.target, 1)
        assert replica.stage(1, 0, [ANN, BOB]) == 2
        assert replica.stage_raw(1, 0, _Unread()) == 2
        assert replica.stage(1, 1, [CAT]) == 1
        copying.finish_copy(replica.target, 1, Boundary(50))
        assert self.rows(replica) == _lines(ANN, BOB, CAT)

    def test_a_range_that_breaks_off_leaves_nothing(self, replica: Replica) -> None:
        copying = self._copying_by_ranges(replica)
        copying.begin_copy(replica.target, 1)
        with pytest.raises(ZeroDivisionError):
            replica.stage_raw(1, 0, _breaking_off(list(replica.copied([ANN]))))
        assert replica.stage(1, 0, [CAT]) == 1
        copying.finish_copy(replica.target, 1, Boundary(50))
        assert self.rows(replica) == _lines(CAT)

    def test_ranges_of_other_attempts_are_refused(self, replica: Replica) -> None:
        copying = self._copying_by_ranges(replica)
        copying.begin_copy(replica.target, 1)
        copying.begin_copy(replica.target, 2)
        for attempt in (1, 3):
            with pytest.raises(Fenced):
                replica.stage(attempt, 0, [ANN])
        copying.finish_copy(replica.target, 2, Boundary(50))
        with pytest.raises(Fenced):
            replica.stage(2, 1, [ANN])
        assert not self.rows(replica)

    def _copying_by_ranges(self, replica: Replica) -> Any:
        if not isinstance(replica.destination, RangeCopy | RangeRows):
            pytest.skip("the destination has neither RangeCopy nor RangeRows")
        return _able(replica, AtomicCopy)

    # -- positions

    def test_positions_move_with_the_data(self, replica: Replica) -> None:
        positions = _able(replica, Positions)
        replica.create(ANN)
        assert positions.positions(replica.pipeline) == {replica.schema.table: TablePosition(1, Boundary(10))}
        replica.apply(replica.wire().insert(BOB).take())
        replica.apply()
        assert positions.positions(replica.pipeline) == {replica.schema.table: TablePosition(1, Boundary(30))}
        assert positions.positions("another") == {}
        assert (positions.latest_attempt(replica.pipeline) > 0, positions.latest_attempt("another")) == (True, 0)

    def test_a_copy_takes_the_position_away_until_it_is_published(self, replica: Replica) -> None:
        positions, copying = _able(replica, Positions), _able(replica, AtomicCopy)
        replica.create(ANN)
        copying.begin_copy(replica.target, 2)
        assert positions.positions(replica.pipeline) == {}
        self._refused(replica, replica.batch(replica.wire().insert(BOB).take()))
        copying.finish_copy(replica.target, 2, Boundary(50))
        assert positions.positions(replica.pipeline)[replica.schema.table].position == Boundary(50)

    def test_a_writer_of_an_earlier_epoch_is_shut_out(self, replica: Replica) -> None:
        positions = _able(replica, Positions)
        replica.create(ANN)
        positions.claim(replica.pipeline, 2)
        positions.claim(replica.pipeline, 2)
        self._refused(replica, replica.batch(replica.wire().insert(BOB).take()))
        with pytest.raises(Fenced):
            positions.claim(replica.pipeline, 1)
        replica.epoch = 2
        replica.apply(replica.wire().insert(BOB).take())
        assert self.rows(replica) == _lines(ANN, BOB)

    def test_a_batch_that_does_not_start_where_the_table_stands_is_refused(self, replica: Replica) -> None:
        _able(replica, Positions)
        replica.create(ANN)
        replica.position = Boundary(11)
        self._refused(replica, replica.batch(replica.wire().insert(BOB).take()))
        replica.position = Boundary(10)
        replica.generation = 2
        self._refused(replica, replica.batch(replica.wire().insert(BOB).take()))

    def test_an_adopted_table_belongs_to_its_new_generation_alone(self, replica: Replica) -> None:
        positions = _able(replica, Positions)
        replica.create(ANN)
        earlier = replica.batch(replica.wire().insert(BOB).take())
        replica.generation = 2
        positions.adopt(replica.target)
        positions.adopt(replica.target)
        assert positions.positions(replica.pipeline)[replica.schema.table] == TablePosition(2, Boundary(10))
        self._refused(replica, earlier)
        replica.apply(replica.wire().insert(CAT).take())
        assert self.rows(replica) == _lines(ANN, CAT)

    def test_two_pipelines_do_not_shut_each_other_out(self, replica: Replica) -> None:
        positions = _able(replica, Positions)
        replica.create(ANN)
        positions.claim("conformance_other", 1_000)
        replica.apply(replica.wire().insert(BOB).take())
        assert self.rows(replica) == _lines(ANN, BOB)

    # -- foreign rows

    def test_a_pipeline_is_one_store_s_until_it_is_forgotten(self, replica: Replica) -> None:
        stamped = _able(replica, Positions, "stamp")
        stamps = [Stamp("a", 5), Stamp("b", 9), Stamp("a", 4), Stamp("a", 6)]
        assert [stamped.stamp("shop", one).changes for one in stamps] == [5, 5, 5, 6]
        assert stamped.stamp("other", Stamp("b", 1)) == Stamp("b", 1)
        stamped.claim("shop", 1)
        assert stamped.stamp("shop", Stamp("b", 9)) == Stamp("a", 6)
        stamped.forget("shop")
        assert stamped.stamp("shop", Stamp("b", 1)) == Stamp("b", 1)

    def test_what_another_pipeline_wrote_is_not_replaced(self, replica: Replica) -> None:
        copying = _able(replica, AtomicCopy, "foreign_rows")
        table = replica.schema.table
        assert copying.foreign_rows(replica.pipeline, [table]) == {}
        other = Replica(replica.destination, replica.schema).create(ANN)
        assert copying.foreign_rows(other.pipeline, [table]) == {}
        assert copying.foreign_rows(replica.pipeline, [table]) == {table: rows_of(other.pipeline)}
        for _ in range(2):
            self._occupied(replica, lambda: copying.begin_copy(replica.target, 1))
        copying.abort_copy(replica.target, 1)
        other.apply(other.wire().insert(BOB).take())
        assert self.rows(replica) == _lines(ANN, BOB)

    def test_what_comes_while_a_copy_is_under_way_is_not_replaced_either(self, replica: Replica) -> None:
        copying = _able(replica, AtomicCopy, "foreign_rows")
        copying.begin_copy(replica.target, 1)
        replica.stage(1, 0, [BOB])
        Replica(replica.destination, replica.schema).create(ANN)
        self._occupied(replica, lambda: copying.finish_copy(replica.target, 1, Boundary(50)))
        copying.abort_copy(replica.target, 1)
        assert self.rows(replica) == _lines(ANN)

    def test_it_is_replaced_for_whoever_asks_for_that_and_is_theirs_then(self, replica: Replica) -> None:
        copying = _able(replica, AtomicCopy, "foreign_rows")
        table, other = replica.schema.table, Replica(replica.destination, replica.schema).create(ANN)
        replica.replaces = True
        replica.create(BOB)
        assert self.rows(replica) == _lines(BOB)
        assert copying.foreign_rows(replica.pipeline, [table]) == {}
        assert copying.foreign_rows(other.pipeline, [table]) == {table: rows_of(replica.pipeline)}

    def test_an_empty_table_is_anybodys(self, replica: Replica) -> None:
        copying = _able(replica, AtomicCopy, "foreign_rows")
        Replica(replica.destination, replica.schema).create()
        assert copying.foreign_rows(replica.pipeline, [replica.schema.table]) == {}
        replica.create(ANN)
        assert self.rows(replica) == _lines(ANN)

    def _occupied(self, replica: Replica, act: Callable[[], None]) -> None:
        """Expects that `act` is refused because of foreign rows, with nothing changed."""
        before = self.rows(replica)
        with pytest.raises(PgetlError) as refused:
            act()
        assert (refused.value.kind, refused.value.table) == (ErrorKind.OCCUPIED, str(replica.schema.table))
        assert self.rows(replica) == before

    # -- the rest

    def test_what_hits_no_row_is_counted(self, replica: Replica) -> None:
        counting = _able(replica, Positions, "misses")
        replica.create(ANN)
        assert counting.misses() == {}
        replica.apply(replica.wire().update(BOB).delete(CAT).update(ANN).take())
        assert counting.misses() == {replica.schema.table: Misses(updates=1, deletes=1)}

    def test_inspection_finds_no_fault(self, replica: Replica) -> None:
        assert _able(replica, Inspecting).inspect() == []

    def test_a_pipeline_that_is_forgotten_begins_anew(self, replica: Replica) -> None:
        """Its tables stay; earlier writers are fenced; the next epochs and generations start from one again."""
        forgetting, table = _able(replica, Positions, "forget"), replica.schema.table
        replica.epoch, replica.generation = 7, 5
        replica.create(ANN)
        stale = replica.batch(replica.wire().insert(BOB).take())
        assert [forgetting.forget(replica.pipeline) for _ in range(2)] == [True, False]
        self._refused(replica, stale)
        if isinstance(forgetting, AtomicCopy):
            assert forgetting.foreign_rows(replica.pipeline, [table]) == {}
        replica.epoch, replica.generation = 1, 1
        replica.create(ANN, CAT)
        assert self.rows(replica) == _lines(ANN, CAT)

    def _refused(self, replica: Replica, batch: EventBatch) -> None:
        """Expects `Fenced`, with nothing changed."""
        before = self.rows(replica)
        with pytest.raises(Fenced):
            replica.destination.write_events(batch)
        assert self.rows(replica) == before


def _able(replica: Replica, ability: type[Any], method: str | None = None) -> Any:
    """Skips the test if the destination has not the ability, or only the default of this method."""
    destination = replica.destination
    if not isinstance(destination, ability):
        pytest.skip(f"the destination has no {ability.__name__}")
    if method is not None and getattr(type(destination), method) is getattr(ability, method):
        pytest.skip(f"the destination has no {method} of its own")
    return destination


def _lines(*rows: Line) -> Counter[tuple[str | None, ...]]:
    return Counter(tuple(map(_as_text, row)) for row in rows)


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode() if isinstance(value, bytes) else str(value)


class _Unread:
    """A range that must not be read."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("a range that is stored already must not be read again")


def _breaking_off(blocks: Sequence[Any]) -> Iterator[Any]:
    yield blocks[0]
    raise ZeroDivisionError
