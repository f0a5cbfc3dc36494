"""Control messages come out as they went in; anything else is refused in words, whatever the bytes are."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import START, Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.wal import pgoutput
from airflow_provider_pgetl.engine.wal.pgoutput import (
    FLOOD_ANSWER_INTERVAL,
    FLOOD_REQUESTS,
    IDLE_INTERVAL,
    PROGRESS_INTERVAL,
    Begin,
    Commit,
    Feedback,
    Keepalive,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    RelationColumn,
    TruncateMessage,
    Type,
    decode,
    timestamp,
)
from tests.engine.changes import pgoutput as changes_pgoutput
from tests.engine.wal.control_messages import encode
from tests.raising import raises

lsns = st.integers(0, 2**64 - 1)
times = st.integers(-(2**63), 2**63 - 1)
oids = st.integers(0, 2**32 - 1)
names = st.text(st.characters(blacklist_characters="\0", codec="utf-8"), min_size=1, max_size=63)
columns = st.builds(RelationColumn, names, oids, st.integers(-(2**31), 2**31 - 1), st.booleans())

messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Begin, lsns.map(CommitLsn), times, oids),
    st.builds(Commit, lsns.map(CommitLsn), lsns.map(Boundary), times),
    st.builds(
        Relation,
        oids,
        st.builds(TableName, names, names),
        st.sampled_from(["default", "index", "full", "nothing"]),
        st.lists(columns, max_size=6).map(tuple),
    ),
    st.builds(Type, oids, names, names),
    st.builds(Origin, lsns.map(CommitLsn), names),
    st.builds(LogicalMessage, st.booleans(), lsns, names, st.binary(max_size=40)),
    st.builds(TruncateMessage, st.lists(oids, max_size=5).map(tuple), st.booleans(), st.booleans()),
    st.builds(Keepalive, lsns.map(Boundary), times, st.booleans()),
)


@given(messages)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    assert decode(encode(message)) == message


@given(messages, st.data())
def test_a_message_cut_short_is_refused(message: Message, data: st.DataObject) -> None:
    payload = encode(message)
    with raises(ErrorKind.INTERNAL):
        decode(payload[: data.draw(st.integers(0, len(payload) - 1))])


@given(messages, st.binary(min_size=1, max_size=9))
def test_a_message_with_something_behind_it_is_refused(message: Message, more: bytes) -> None:
    with pytest.raises(PgetlError, match="malformed"):
        decode(encode(message) + more)


@given(st.sampled_from(list("BCRYOMT")), st.binary(max_size=80))
def test_garbage_is_decoded_or_refused_but_never_another_error(kind: str, body: bytes) -> None:
    with suppress(PgetlError):
        decode(changes_pgoutput.xlog_data(kind.encode() + body))


@given(st.binary(max_size=60))
def test_any_bytes_at_all_are_no_other_error(payload: bytes) -> None:
    with suppress(PgetlError):
        decode(payload)


@pytest.mark.parametrize("kind", "SEcA")
def test_streamed_transactions_are_named_and_refused(kind: str) -> None:
    with pytest.raises(PgetlError, match=r"a streamed transaction .* was not requested"):
        decode(changes_pgoutput.xlog_data(kind.encode() + bytes(20)))


@pytest.mark.parametrize("kind", "bPKrp")
def test_two_phase_transactions_are_named_and_refused(kind: str) -> None:
    with pytest.raises(PgetlError, match=r"two-phase transaction .* was not requested"):
        decode(changes_pgoutput.xlog_data(kind.encode() + bytes(20)))


@pytest.mark.parametrize(
    ("payload", "word"),
    [
        (changes_pgoutput.insert(1, [b"secret"]), "insert"),
        (changes_pgoutput.update(1, [b"secret"]), "update"),
        (changes_pgoutput.delete(1, key=[b"secret"]), "delete"),
    ],
)
def test_rows_are_refused_without_showing_them(payload: bytes, word: str) -> None:
    with pytest.raises(PgetlError, match=f"the {word} of a row") as refusal:
        decode(payload)
    assert b"secret".hex() not in str(refusal.value)


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(PgetlError, match="unknown pgoutput message b'z'"):
        decode(changes_pgoutput.xlog_data(b"z"))
    with pytest.raises(PgetlError, match="unknown replication message b'x'"):
        decode(b"x")


def test_times_count_from_the_year_2000() -> None:
    assert timestamp(1_000_000) == datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC)


# -- What is said to a walsender. --------------------------------------------------------------------------------------


def test_the_stream_is_asked_for_without_streamed_or_two_phase_transactions() -> None:
    assert pgoutput.start_replication("slot", ["shop"], START, binary=True, messages=False) == (
        'START_REPLICATION SLOT "slot" LOGICAL 0/0'
        " (proto_version '1', publication_names '\"shop\"', binary 'true', messages 'false')"
    )


def test_publication_names_may_hold_quotes_and_commas() -> None:
    command = pgoutput.start_replication(
        "s", ['a,"b', "it's", "Ü"], Boundary(0x16B374D848), binary=False, messages=True
    )
    assert 'publication_names \'"a,""b","it\'\'s","Ü"\'' in command
    assert " LOGICAL 16/B374D848 " in command
    assert "binary 'false'" in command


def test_a_status_says_written_flushed_applied_and_when() -> None:
    noon = datetime(2000, 1, 1, 12, tzinfo=UTC).timestamp()
    status = pgoutput.standby_status(Boundary(258), reply_requested=True, unix_time=noon)
    microseconds = 12 * 3600 * 1_000_000
    assert status == b"r" + 3 * (258).to_bytes(8, "big") + microseconds.to_bytes(8, "big") + b"\1"
    assert pgoutput.standby_status(START, reply_requested=False, unix_time=noon)[-1:] == b"\0"


# -- When feedback is due, and when a server's questions are a flood: it shuts down and waits for us. ------------------

HERE, BEYOND = Boundary(100), Boundary(200)


def asking(position: Boundary = HERE) -> Keepalive:
    return Keepalive(position, 0, reply_requested=True)


def test_a_request_is_answered_at_once() -> None:
    feedback = Feedback(0.0, 60.0)
    assert not feedback.due(0.01, START)
    feedback.heard(0.01, asking())
    assert feedback.due(0.01, START)
    feedback.sent(0.01, START)
    assert not feedback.due(0.01, START)


def test_a_keepalive_that_does_not_ask_is_not_answered() -> None:
    feedback = Feedback(0.0, 60.0)
    feedback.heard(0.01, Keepalive(HERE, 0, reply_requested=False))
    assert not feedback.due(0.01, START)


def test_progress_is_told_but_not_too_often() -> None:
    feedback = Feedback(0.0, 60.0)
    feedback.sent(10.0, HERE)
    assert not feedback.due(10.0 + PROGRESS_INTERVAL / 2, BEYOND)
    assert feedback.due_in(10.0, BEYOND) == pytest.approx(PROGRESS_INTERVAL)
    assert feedback.due(10.001 + PROGRESS_INTERVAL, BEYOND)
    assert not feedback.due(10.001 + PROGRESS_INTERVAL, HERE)


@given(st.floats(0.001, 600))
def test_silence_is_broken_several_times_within_the_servers_patience(sender_timeout: float) -> None:
    feedback = Feedback(0.0, sender_timeout)
    assert feedback.due_in(0.0, START) <= sender_timeout / 3
    assert feedback.due(sender_timeout / 3, START)


def test_silence_is_broken_even_where_the_server_has_no_timeout() -> None:
    assert Feedback(0.0, None).due(IDLE_INTERVAL, START)


class Server:
    """Asks, and hears the answers `round_trip` later; `feedback` answers whenever it is due."""

    def __init__(self, feedback: Feedback) -> None:
        self.feedback = feedback
        self.now = 0.0
        self.answers = 0

    def ask(self, after: float, position: Boundary = HERE) -> None:
        self.now += after
        self.feedback.heard(self.now, asking(position))
        self.now += self.feedback.due_in(self.now, START)
        self.feedback.sent(self.now, START)
        self.answers += 1

    @property
    def flood(self) -> float | None:
        return self.feedback.flooded_for(self.now)


def test_a_server_that_shuts_down_floods() -> None:
    server = Server(Feedback(0.0, 60.0))
    for _ in range(FLOOD_REQUESTS - 1):
        server.ask(after=0.0002)
        assert server.flood is None
    server.ask(after=0.0002)
    assert server.flood is not None
    began = server.now
    server.ask(after=0.0002)
    assert server.flood == pytest.approx(server.now - began, abs=0.2)


def test_answers_to_a_flood_are_spaced_out() -> None:
    server = Server(Feedback(0.0, 60.0))
    while server.now < 3.0:
        server.ask(after=0.0001)
    assert server.answers < 3.0 / FLOOD_ANSWER_INTERVAL + FLOOD_REQUESTS + 2
    assert server.flood is not None
    assert server.flood > 2.5


@given(sender_timeout=st.floats(0.05, 120), round_trip=st.floats(0, 0.2))
def test_an_idle_servers_repetition_is_no_flood(sender_timeout: float, round_trip: float) -> None:
    """It asks half a timeout after it last heard from us."""
    server = Server(Feedback(0.0, sender_timeout))
    for _ in range(50):
        server.ask(after=sender_timeout / 2 + round_trip)
        assert server.flood is None


def test_requests_that_move_on_are_no_flood() -> None:
    server = Server(Feedback(0.0, 60.0))
    for step in range(50):
        server.ask(after=0.0002, position=Boundary(step))
        assert server.flood is None


def test_requests_that_piled_up_before_we_could_answer_are_no_flood() -> None:
    """They were asked while we did not read, not in response to our answers."""
    feedback = Feedback(0.0, 60.0)
    feedback.heard(0.1, asking())
    feedback.sent(0.1, START)
    for _ in range(50):
        feedback.heard(0.2, asking())
    assert feedback.flooded_for(0.2) is None


def test_a_flood_ends_when_the_server_moves_on() -> None:
    server = Server(Feedback(0.0, 60.0))
    for _ in range(20):
        server.ask(after=0.0002)
    assert server.flood is not None
    server.ask(after=0.0002, position=BEYOND)
    assert server.flood is None
