"""Sizes and durations as people write them: ``64MiB``, ``500ms``.

Each unit has one spelling. ``MB`` is refused rather than guessed: to Postgres it means 2^20 bytes, to most others 10^6.
"""

from __future__ import annotations

import math
import re

LARGEST = 1 << 50
LONGEST = 100 * 365 * 24 * 3600.0
"""The largest size in bytes and duration in seconds: clocks, calendars and other libraries can represent them."""

_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_DURATIONS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"(?P<number>\d+(\.\d+)?) ?(?P<unit>[A-Za-z]+)", re.ASCII)


def parse_size(text: str) -> int:
    """Returns bytes. Raises `ValueError`, which says what was expected."""
    number, unit = _split(text, tuple(_SIZES), "64MiB")
    if "." in number and unit == "B":
        raise ValueError("bytes are whole")
    if "." not in number:
        return int(number) * _SIZES[unit]
    return round(_finite(float(number) * _SIZES[unit]))


def parse_duration(text: str) -> float:
    """Returns seconds. Raises `ValueError`, which says what was expected."""
    number, unit = _split(text, tuple(_DURATIONS), "10s")
    return _finite(float(number) / 1000 if unit == "ms" else float(number) * _DURATIONS[unit])


def format_size(size: float) -> str:
    """Returns the size for people, in the largest unit of which it has at least one."""
    unit = next((name for name in ("TiB", "GiB", "MiB", "KiB") if size >= _SIZES[name]), "B")
    return f"{size:.0f} B" if unit == "B" else f"{size / _SIZES[unit]:.1f} {unit}"


def format_duration(seconds: float) -> str:
    """Returns the duration for people: ``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("it is more than can be counted")
    return value


def _split(text: str, units: tuple[str, ...], example: str) -> tuple[str, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None or match["unit"] not in units:
        raise ValueError(f'write a number and one of {", ".join(units)}, for instance "{example}"')
    return match["number"], match["unit"]
