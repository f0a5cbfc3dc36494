"""What may be acknowledged: a boundary below which nothing owned is outside the destination."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.recognition import Seen, Transaction
from airflow_provider_pgetl.engine.sync.progress import Progress

START = Boundary(100)


def _received(progress: Progress, commit: int, end: int, *, owned: bool) -> None:
    progress.begin(Transaction(CommitLsn(commit)))
    if owned:
        progress.touch()
    progress.commit(Boundary(end))


def test_an_idle_stream_is_durable_to_the_last_keepalive() -> None:
    """An idle database on a busy server must not pin WAL."""
    progress = Progress(START)
    progress.keepalive(Boundary(500))
    assert progress.durable == Boundary(500)
    assert progress.at_rest


def test_foreign_transactions_hold_nothing_back() -> None:
    progress = Progress(START)
    _received(progress, 110, 120, owned=False)
    assert progress.durable == Boundary(120)


def test_what_is_gathered_holds_everything_back_until_it_is_written() -> None:
    progress = Progress(START)
    _received(progress, 110, 120, owned=True)
    progress.keepalive(Boundary(500))
    assert progress.durable == START
    assert progress.take() == Boundary(120), "where a transaction ended: the source can be held to that"
    assert progress.durable == START
    progress.written()
    assert progress.durable == Boundary(500)


def test_what_comes_during_a_write_waits_for_the_next() -> None:
    progress = Progress(START)
    _received(progress, 110, 120, owned=True)
    progress.take()
    _received(progress, 120, 130, owned=True)
    progress.written()
    assert progress.durable == Boundary(120)
    assert not progress.at_rest


def test_an_open_transaction_holds_nothing_back_but_is_no_rest() -> None:
    """It lies wholly behind the last boundary."""
    progress = Progress(START)
    progress.keepalive(Boundary(150))
    progress.begin(Transaction(CommitLsn(150)))
    progress.touch()
    assert progress.durable == Boundary(150)
    assert not progress.at_rest


def test_a_keepalive_within_a_transaction_says_nothing() -> None:
    progress = Progress(START)
    progress.begin(Transaction(CommitLsn(110)))
    progress.keepalive(Boundary(500))
    assert progress.position == START


def test_a_server_that_reports_less_after_a_reconnect_changes_nothing() -> None:
    progress = Progress(START)
    progress.keepalive(Boundary(40))
    assert progress.position == progress.durable == START


@dataclass
class Model:
    """Every owned transaction that is not written, by its commit LSN."""

    waiting: list[int] = field(default_factory=list)
    flying: list[int] = field(default_factory=list)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("transaction"), st.booleans(), st.integers(0, 3)),
        st.tuples(st.just("keepalive"), st.booleans(), st.integers(0, 60)),
        st.tuples(st.just("take"), st.booleans(), st.integers(0, 0)),
        st.tuples(st.just("written"), st.booleans(), st.integers(0, 0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_nothing_owned_lies_below_what_is_durable(steps: list[tuple[str, bool, int]]) -> None:
    progress, model = Progress(START), Model()
    wal, before = START.lsn, START
    for what, owned, number in steps:
        if what == "transaction":
            commit, wal = wal + number, wal + number + 5
            _received(progress, commit, wal, owned=owned)
            model.waiting += [commit] if owned else []
        elif what == "keepalive":
            wal = wal + number if owned else wal
            progress.keepalive(Boundary(wal if owned else number))
        elif what == "take" and progress.in_flight is None and progress.pending:
            progress.take()
            model.waiting, model.flying = [], model.waiting
        elif what == "written":
            progress.written()
            model.flying = []
        outside = model.waiting + model.flying
        assert not any(progress.durable.covers(CommitLsn(commit)) for commit in outside)
        assert progress.durable >= before
        assert outside or progress.durable == progress.position
        before = progress.durable


def test_a_write_ends_where_the_last_owned_transaction_ends() -> None:
    """One that nothing of was owned, of a table that was being published, may not be sent again."""
    progress = Progress(Boundary(100))
    for lsn, is_ours in ((110, True), (130, False)):
        progress.begin(Transaction(CommitLsn(lsn), lsn))
        if is_ours:
            progress.touch()
        progress.commit(Boundary(lsn + 10))
    owned = Transaction(CommitLsn(110), 110)
    assert progress.take() == Boundary(120)
    assert progress.seen_in_flight == Seen(Boundary(120), Boundary(120), owned, owned)
    progress.written()
    assert progress.durable == Boundary(140)
    assert progress.seen == Seen(
        Boundary(140), Boundary(140), Transaction(CommitLsn(130), 130), Transaction(CommitLsn(110), 110)
    )
