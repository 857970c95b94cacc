"""Sizes and lengths of time in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.units import MAX_SIZE, duration, parse_duration_us, parse_size, part_of, size


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


@pytest.mark.parametrize(
    ("texts", "octets"),
    [
        (("8G", "8Gi", "8GiB", "8 gib", "8gi", "8192M"), 8 << 30),
        (("8GB", "8gb", "8000MB"), 8 * 1000**3),
        (("1B", "1"), 1),
    ],
)
def test_units_of_sizes(texts: tuple[str, ...], octets: int) -> None:
    """As RUNLIST_MEMORY and annotations have them, too."""
    assert {text: parse_size(text) for text in texts} == dict.fromkeys(texts, octets)


@pytest.mark.parametrize(
    "text", ["8i", "8iB", "8Q", "8Gib B", "8 G i", "8e3", "0x10", "\uff18G", "-5", "nan", "", "G", "8GiBi"]
)
def test_what_is_no_size(text: str) -> None:
    assert parse_size(text) is None


@given(st.integers(0, MAX_SIZE))
def test_bytes_are_themselves(octets: int) -> None:
    assert parse_size(str(octets)) == parse_size(f" {octets} B ") == octets


@given(st.integers(0, MAX_SIZE))
def test_a_size_is_read_as_it_was_written(octets: int) -> None:
    read = parse_size(size(octets))
    assert read is not None
    assert abs(read - octets) <= octets / 20 + 0.5  # one decimal of its unit
    assert size(read) == size(octets)


def test_very_long_numbers_are_none() -> None:
    assert parse_size("9" * 5000) is None
    assert parse_size("0." + "1" * 5000) is None
    assert parse_duration_us("9" * 5000, bare="us") is None
    assert parse_duration_us("9" * 5000 + "s") is None


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1us", 1), ("1.5 ms", 1500), ("2s", 2e6), ("7µs", 7), ("7\u03bcs", 7), ("0ms", 0), (" 3ms ", 3000),
        ("1.001ms", 1001), ("0.000007s", 7), ("5", None), ("-5ms", None), ("5 minutes", None), ("2h", None),
        ("", None), ("ms", None), ("1e3us", None), ("5  ms", None), ("5ms/20ms", None), ("٣ms", None),
    ],
)  # fmt: skip
def test_durations(text: str, microseconds: float | None) -> None:
    assert parse_duration_us(text) == microseconds


@pytest.mark.parametrize(
    ("text", "unit", "microseconds"),
    [
        ("5", "ms", 5000), ("5", "µs", 5), ("0.5", "ms", 500), ("5us", "ms", 5), ("1_000", "us", 1000),
        ("-1", "us", -1), ("nan", "ms", None), ("inf", "s", None), ("1e400", "us", None),
        ("", "us", None), ("5%", "us", None),
    ],
)  # fmt: skip
def test_a_number_alone_counts_where_a_unit_is_named(text: str, unit: str, microseconds: float | None) -> None:
    assert parse_duration_us(text, bare=unit) == microseconds


@given(st.text(max_size=30), st.sampled_from(["", "us", "ms", "s"]))
def test_anything_is_a_duration_or_none(text: str, bare: str) -> None:
    found = parse_duration_us(text, bare)
    assert found is None or (bare != "" or found >= 0)


@given(st.floats(0, 86_400e6) | st.integers(0, 86_400_000_000))
def test_a_duration_is_read_as_it_was_written(microseconds: float) -> None:
    read = parse_duration_us(duration(microseconds))
    assert read is not None
    assert abs(read - microseconds) <= max(0.0005, microseconds / 1000)
    assert duration(read) == duration(microseconds)


@given(st.integers(0, 86_400_000_000), st.sampled_from([("us", 1), ("ms", 1_000), ("s", 1_000_000)]))
def test_whole_microseconds_are_read_exactly_in_every_unit(microseconds: int, unit: tuple[str, int]) -> None:
    word, scale = unit
    whole, rest = divmod(microseconds, scale)
    decimals = f".{rest:0{len(str(scale)) - 1}d}" if scale > 1 else ""
    assert parse_duration_us(f"{whole}{decimals}{word}") == microseconds
