"""Sizes and durations: one spelling for each unit, and nothing guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.model.quantities import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("0B", 0), ("17B", 17), ("64MiB", 64 << 20), ("1GiB", 1 << 30), ("1.5KiB", 1536), ("2 TiB", 2 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0.0), ("500ms", 0.5), ("10s", 10.0), ("1.5min", 90.0), ("2h", 7200.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "64", "MiB", "64MB", "64mib", "-1MiB", "1e3MiB", "1,5MiB", "0.5B", "64MiB ", "٣MiB", "9" * 400 + ".5MiB"],
)
def test_a_bad_size_is_told_how_to_be_good(text: str) -> None:
    with pytest.raises(ValueError, match=r"64MiB|whole|counted"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "10", "10 seconds", "-1s", "1m", "inf", "9" * 400 + "h", "9" * 400 + "ms"])
def test_a_bad_duration_is_told_how_to_be_good(text: str) -> None:
    with pytest.raises(ValueError, match=r"10s|counted"):
        parse_duration(text)


@given(st.integers(0, 1 << 70), st.sampled_from([("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)]))
def test_whole_sizes_are_exact(number: int, unit: tuple[str, int]) -> None:
    name, shift = unit
    assert parse_size(f"{number}{name}") == number << shift


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (64 << 20, "64.0 MiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (0.44, "0.4 s"), (12.4, "12 s"), (59.7, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
