"""Sizes in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.units import MAX_SIZE, parse_size, part_of, size


@pytest.mark.parametrize(
    ("held", "limit", "text"),
    [
        (3 << 30, 8 << 30, "3.0/8.0G"), (100 << 20, 512 << 20, "100.0/512.0M"), (512 << 20, 2 << 30, "0.5/2.0G"),
        (0, 100, "0/100B"), (5 << 30, 1 << 30, "5.0/1.0G"), (1, 1 << 10, "0.0/1.0K"),
    ],
)  # fmt: skip
def test_parts(held: int, limit: int, text: str) -> None:
    assert part_of(held, limit) == text


@given(st.text(max_size=30))
def test_anything_is_a_size_or_none(text: str) -> None:
    found = parse_size(text)
    assert found is None or 0 <= found <= MAX_SIZE


@given(st.integers(0, MAX_SIZE))
def test_bytes_are_themselves(octets: int) -> None:
    assert parse_size(str(octets)) == parse_size(f" {octets} B ") == octets
    assert size(octets)


def test_very_long_numbers_are_none() -> None:
    assert parse_size("9" * 5000) is None
    assert parse_size("0." + "1" * 5000) is None
