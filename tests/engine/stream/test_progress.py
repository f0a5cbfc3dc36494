"""What may be acknowledged: a boundary below which nothing owned is outside the destination."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn, Seen, Transaction
from airflow_provider_pgetl.engine.stream.progress import CommitLag, Progress

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


# -- How old what waits is. --------------------------------------------------------------------------------------------

NOW = 70.0
SOURCES_NOW = 100_000.0


def oldest(found: CommitLag, durable: int) -> float:
    """When the oldest commit beyond it was, by the source's clock."""
    return SOURCES_NOW - found.oldest(Boundary(durable), NOW)


def commit_lag(*commits: tuple[int, float]) -> CommitLag:
    found = CommitLag()
    for end, at in commits:
        found.committed(Boundary(end), at, NOW)
    found.heard(SOURCES_NOW, NOW)
    return found


def test_nothing_waits_at_first_nor_when_all_is_durable() -> None:
    assert CommitLag().oldest(Boundary(0), NOW) == 0
    assert commit_lag((10, 1.0), (20, 5.0)).oldest(Boundary(20), NOW) == 0


def test_the_oldest_commit_that_is_not_durable_counts_however_new_the_newest_is() -> None:
    found = commit_lag((10, 1.0), (20, 5.0), (30, 9.0))
    assert oldest(found, 9) == 1.0
    assert oldest(found, 10) == 5.0
    assert oldest(found, 29) == 9.0


def test_commits_close_to_each_other_wait_until_the_last_of_them_is_durable() -> None:
    found = commit_lag((10, 1.0), (20, 1.05), (30, 2.0))
    assert oldest(found, 10) == 1.0
    assert oldest(found, 20) == 2.0


def test_a_stream_that_is_held_up_for_a_day_remembers_little_and_stays_about_right() -> None:
    found = commit_lag(*((n, n * 0.5) for n in range(1, 172_800)))
    assert len(found._waiting) <= 1000
    assert oldest(found, 0) == 0.5
    half = oldest(found, 86_400)
    assert abs(half - 43_200) < 400


def test_an_age_is_told_by_the_sources_clock_whatever_this_machine_takes_the_time_to_be() -> None:
    found = CommitLag()
    found.committed(Boundary(10), 1000.0, now=1.0)
    assert found.oldest(Boundary(0), now=4.0) == 3.0
    found.heard(1010.0, now=5.0)
    assert found.oldest(Boundary(0), now=6.0) == 11.0
    found.heard(990.0, now=7.0)  # the source's clock was set back
    assert found.oldest(Boundary(0), now=8.0) == 0.0
