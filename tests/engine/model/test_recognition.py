"""Whether what a source sends again is what it sent before."""

import pytest

from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn, Recognition, Seen, Transaction

LAST = Transaction(CommitLsn(190), 742, 8_000)
SEEN = Seen(Boundary(300), Boundary(200), LAST)


def sent(lsn: int, xid: int = 1) -> Transaction:
    return Transaction(CommitLsn(lsn), xid, 5_000)


def told(recognition: Recognition, *what: Transaction | int) -> str | None:
    """What it says first."""
    for each in what:
        why = recognition.reached(Boundary(each)) if isinstance(each, int) else recognition.transaction(each)
        if why is not None:
            return why
    return None


@pytest.mark.parametrize("start", [100, 190])
def test_a_crash_that_lost_only_the_slot_s_progress_is_recognized(start: int) -> None:
    recognition = Recognition(Boundary(start), [SEEN])
    assert told(recognition, *([sent(150), 160] if start < 150 else []), LAST, 200, 260) is None
    assert not recognition.complete
    assert told(recognition, 300) is None
    assert recognition.complete
    assert told(recognition, sent(310)) is None


def test_what_the_slot_was_confirmed_beyond_needs_no_proof() -> None:
    assert Recognition(Boundary(300), [SEEN]).complete
    assert told(Recognition(Boundary(200), [SEEN]), 250, 300, sent(300)) is None


@pytest.mark.parametrize(
    ("start", "what", "said"),
    [
        (100, (sent(150), sent(190)), "instead of transaction 742 at 0/BE, which it sent before, it has"),
        (100, (sent(150), sent(191)), "instead of transaction 742"),
        (100, (sent(150), 170, 400), "transaction 742 at 0/BE, which it sent before, is not there any more"),
        (100, (LAST, 200, sent(200)), "it has transaction 1 at 0/C8, where it had none before"),
        (200, (sent(299),), "it has transaction 1 at 0/12B, where it had none before"),
        (250, (sent(260),), "where it had none before"),
    ],
)
def test_a_source_that_went_back_is_found(start: int, what: tuple[Transaction | int, ...], said: str) -> None:
    why = told(Recognition(Boundary(start), [SEEN]), *what)
    assert why is not None
    assert said in why


def test_what_was_seen_without_any_transaction_tells_of_those_that_come() -> None:
    idle = Seen(Boundary(300), Boundary(200))
    assert told(Recognition(Boundary(100), [idle]), sent(150), 180, 300) is None
    assert told(Recognition(Boundary(100), [idle]), sent(250)) is not None


def test_all_that_was_seen_is_to_be_there() -> None:
    further = Seen(Boundary(400), Boundary(350))
    recognition = Recognition(Boundary(100), [SEEN, further])
    assert told(recognition, LAST, 200, sent(310), 320) is None
    assert not recognition.complete
    assert told(recognition, sent(360)) is not None


def test_what_is_implied_by_what() -> None:
    assert SEEN.implies(Seen(Boundary(300), Boundary(100)))
    assert not SEEN.implies(Seen(Boundary(301), Boundary(301)))
    idle = Seen(Boundary(300), Boundary(200))
    assert idle.implies(Seen(Boundary(250), Boundary(200)))
    assert not idle.implies(Seen(Boundary(250), Boundary(199)))


@pytest.mark.parametrize("end", [250, 300])
def test_where_a_write_ended_a_transaction_must_end(end: int) -> None:
    recognition = Recognition(Boundary(100), [], [Boundary(end)])
    assert told(recognition, sent(end - 5)) is None
    assert not recognition.complete
    assert recognition.committed(Boundary(end)) is None
    assert recognition.complete
    assert told(recognition, sent(end), end + 10) is None


@pytest.mark.parametrize("what", [(sent(240), 260), (sent(260),), (sent(250),), (250,), (400,)])
def test_another_transaction_across_the_end_of_a_write_is_another_history(what: tuple[Transaction | int, ...]) -> None:
    why = told(Recognition(Boundary(100), [], [Boundary(250)]), *what)
    assert why == "no transaction ends at 0/FA any more, up to where tables were written"


def test_a_write_before_the_slot_needs_no_proof() -> None:
    assert Recognition(Boundary(250), [], [Boundary(250)]).complete


def test_what_others_have_seen_is_held_against_it_but_not_waited_for() -> None:
    further = Seen(Boundary(9000), Boundary(8900), Transaction(CommitLsn(8800), 7, 7))
    recognition = Recognition(Boundary(100), [SEEN], (), [further])
    assert told(recognition, LAST, 200, 300) is None
    assert recognition.complete
    assert told(recognition, 8900) is not None


SERVER = 1_763_000_000_000_000
OWNED = Transaction(CommitLsn(150), 700, 7_000)
MET = Seen(Boundary(300), Boundary(200), LAST, OWNED, SERVER)


def test_a_server_that_was_not_started_again_must_send_only_what_was_owned() -> None:
    """Others it decides upon by what it had decoded before: what was sent may not be, and the other way round."""
    assert told(Recognition(Boundary(100), [MET], server=SERVER), OWNED, 160, sent(250), 300) is None
    why = told(Recognition(Boundary(100), [MET], server=SERVER), sent(140), LAST)
    assert why == "instead of transaction 700 at 0/96, which it sent before, it has transaction 742 at 0/BE"


@pytest.mark.parametrize("server", [0, SERVER + 1])
def test_one_that_was_started_again_or_maybe_must_send_the_last_and_nothing_behind_it(server: int) -> None:
    assert told(Recognition(Boundary(100), [MET], server=server), OWNED, 160, 300) is not None
    assert told(Recognition(Boundary(100), [MET], server=server), OWNED, LAST, 200, sent(250)) is not None
    assert told(Recognition(Boundary(100), [MET], server=server), OWNED, LAST, 200, 300) is None


def test_what_else_may_be_behind_it_is_said_of_a_transaction_in_which_nothing_was_owned() -> None:
    other = told(Recognition(Boundary(100), [MET], server=SERVER + 1), OWNED, 160, 300)
    assert other is not None
    assert "or a publication was altered while that transaction was open" in other
    owned = Seen(Boundary(300), Boundary(200), OWNED, OWNED, SERVER)
    assert told(Recognition(Boundary(100), [owned], server=SERVER + 1), 160) == (
        "transaction 700 at 0/96, which it sent before, is not there any more"
    )


def test_of_two_ends_each_must_be_there() -> None:
    recognition = Recognition(Boundary(100), [], [Boundary(150), Boundary(250)])
    assert told(recognition, sent(140)) is None
    assert recognition.committed(Boundary(250)) is not None
