"""Sizes of memory and lengths of time, as people write and read them."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_SIZE = 1 << 50
"""A pebibyte: more than any GPU has."""

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,6})?) ?(?:([KMGT])(i?B?)|B)?", re.ASCII | re.IGNORECASE)
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:_?\d{1,3}){0,4}(?:\.\d{0,15})?|\.\d{1,15})(?:[eE][+-]?\d{1,2})?", re.ASCII)
_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,15})?) ?(us|µs|μs|ms|s)", re.ASCII)
_UNIT_US = {"us": 1, "µs": 1, "μs": 1, "ms": 1_000, "s": 1_000_000}
_TIMES = ((1_000_000, "s"), (1_000, "ms"), (1, "µs"))


def parse_size(text: str) -> int | None:
    """Bytes of a number and a unit, or None for another text: 8G, 8Gi and 8GiB are 8 × 1024³, 8GB is 8 × 1000³."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    number, prefix, rest = match.groups()
    power = " KMGT".index(prefix.upper()) if prefix else 0
    size = round(Fraction(number) * (1000 if (rest or "").upper() == "B" else 1024) ** power)
    return size if size <= MAX_SIZE else None


def size(octets: int) -> str:
    """A number of bytes in its best unit."""
    scale, unit = _unit(octets)
    return f"{octets / scale:.{0 if scale == 1 else 1}f} {unit}"


def part_of(octets: int, whole: int) -> str:
    """Bytes of a whole, short, in the unit of the whole: `3.2/8.0G`."""
    scale, unit = _unit(whole)
    digits = 0 if scale == 1 else 1
    return f"{octets / scale:.{digits}f}/{whole / scale:.{digits}f}{unit[0]}"


def _unit(octets: int) -> tuple[int, str]:
    """The largest unit of which there is one, when rounded to the decimal that is written."""
    return next((pair for pair in _UNITS if octets >= pair[0] - pair[0] // 20480), (1, "B"))


def parse_number(text: str) -> float | None:
    """A number as people write it (-3, 0.5), or None for another text: none in other scripts' digits, no words."""
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) is not None else None


def parse_duration_us(text: str, bare: str = "") -> float | None:
    """Microseconds of a number and a unit (500us, 1.5ms, 2 s), or None for another text. A number alone is in the unit
    `bare`, if that is given; it may be negative.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is not None:
        return float(Fraction(match[1]) * _UNIT_US[match[2]])
    number = parse_number(text) if bare else None
    return None if number is None else number * _UNIT_US[bare]


def percent(part: float) -> str:
    """A part (0 to 1) with at most four digits: `12.5 %`."""
    return f"{100 * part:.4g} %"


def duration(microseconds: float) -> str:
    """A time in its best unit, with at most three decimals."""
    size, unit = next((pair for pair in _TIMES if microseconds >= pair[0]), _TIMES[-1])
    return f"{round(microseconds / size, 3):g} {unit}"
