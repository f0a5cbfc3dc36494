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
from airflow_provider_pgetl.engine.wal import protocol
from airflow_provider_pgetl.engine.wal.protocol import (
    Begin,
    Commit,
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
from tests.engine.changes import pgoutput
from tests.engine.wal.control_messages import encode

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
    with pytest.raises(PgetlError) as refusal:
        decode(payload[: data.draw(st.integers(0, len(payload) - 1))])
    assert refusal.value.kind == ErrorKind.INTERNAL


@given(messages, st.binary(min_size=1, max_size=9))
def test_a_message_with_something_behind_it_is_refused(message: Message, more: bytes) -> None:
    with pytest.raises(PgetlError, match="malformed"):
        decode(encode(message) + more)


@given(st.sampled_from(list("BCRYOMT")), st.binary(max_size=80))
def test_garbage_is_decoded_or_refused_but_never_another_error(kind: str, body: bytes) -> None:
    with suppress(PgetlError):
        decode(pgoutput.xlog_data(kind.encode() + body))


@given(st.binary(max_size=60))
def test_any_bytes_at_all_are_no_other_error(payload: bytes) -> None:
    with suppress(PgetlError):
        decode(payload)


@pytest.mark.parametrize("kind", "SEcA")
def test_streamed_transactions_are_named_and_refused(kind: str) -> None:
    with pytest.raises(PgetlError, match=r"a streamed transaction .* was not requested"):
        decode(pgoutput.xlog_data(kind.encode() + bytes(20)))


@pytest.mark.parametrize("kind", "bPKrp")
def test_two_phase_transactions_are_named_and_refused(kind: str) -> None:
    with pytest.raises(PgetlError, match=r"two-phase transaction .* was not requested"):
        decode(pgoutput.xlog_data(kind.encode() + bytes(20)))


@pytest.mark.parametrize(
    ("payload", "word"),
    [
        (pgoutput.insert(1, [b"secret"]), "insert"),
        (pgoutput.update(1, [b"secret"]), "update"),
        (pgoutput.delete(1, key=[b"secret"]), "delete"),
    ],
)
def test_rows_are_refused_without_showing_them(payload: bytes, word: str) -> None:
    with pytest.raises(PgetlError, match=f"the {word} of a row") as refusal:
        decode(payload)
    assert b"secret".hex() not in str(refusal.value)


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(PgetlError, match="unknown pgoutput message b'z'"):
        decode(pgoutput.xlog_data(b"z"))
    with pytest.raises(PgetlError, match="unknown replication message b'x'"):
        decode(b"x")


def test_times_count_from_the_year_2000() -> None:
    assert timestamp(1_000_000) == datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC)


# -- What is said to a walsender. --------------------------------------------------------------------------------------


def test_the_stream_is_asked_for_without_streamed_or_two_phase_transactions() -> None:
    assert protocol.start_replication("slot", ["shop"], START, binary=True) == (
        'START_REPLICATION SLOT "slot" LOGICAL 0/0'
        " (proto_version '1', publication_names '\"shop\"', binary 'true', messages 'false')"
    )


def test_publication_names_may_hold_quotes_and_commas() -> None:
    command = protocol.start_replication("s", ['a,"b', "it's", "Ü"], Boundary(0x16B374D848), binary=False)
    assert 'publication_names \'"a,""b","it\'\'s","Ü"\'' in command
    assert " LOGICAL 16/B374D848 " in command
    assert "binary 'false'" in command


def test_a_status_says_written_flushed_applied_and_when() -> None:
    noon = datetime(2000, 1, 1, 12, tzinfo=UTC).timestamp()
    status = protocol.standby_status(Boundary(258), reply_requested=True, unix_time=noon)
    microseconds = 12 * 3600 * 1_000_000
    assert status == b"r" + 3 * (258).to_bytes(8, "big") + microseconds.to_bytes(8, "big") + b"\1"
    assert protocol.standby_status(START, reply_requested=False, unix_time=noon)[-1:] == b"\0"
