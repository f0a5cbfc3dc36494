"""What is said to a walsender."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_provider_pgetl.engine.positions import START, Boundary
from airflow_provider_pgetl.engine.wal import commands


def test_the_stream_is_asked_for_without_streamed_or_two_phase_transactions() -> None:
    assert commands.start_replication("slot", ["shop"], START, binary=True) == (
        'START_REPLICATION SLOT "slot" LOGICAL 0/0'
        " (proto_version '1', publication_names '\"shop\"', binary 'true', messages 'false')"
    )


def test_publication_names_may_hold_quotes_and_commas() -> None:
    command = commands.start_replication("s", ['a,"b', "it's", "Ü"], Boundary(0x16B374D848), binary=False)
    assert 'publication_names \'"a,""b","it\'\'s","Ü"\'' in command
    assert " LOGICAL 16/B374D848 " in command
    assert "binary 'false'" in command


def test_a_status_says_written_flushed_applied_and_when() -> None:
    noon = datetime(2000, 1, 1, 12, tzinfo=UTC).timestamp()
    status = commands.standby_status(Boundary(258), reply_requested=True, unix_time=noon)
    microseconds = 12 * 3600 * 1_000_000
    assert status == b"r" + 3 * (258).to_bytes(8, "big") + microseconds.to_bytes(8, "big") + b"\1"
    assert commands.standby_status(START, reply_requested=False, unix_time=noon)[-1:] == b"\0"
