"""Layouts: bytes by name, and every mistake told."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.structure import Structure

_BITS = {"B": 8, "H": 16, "I": 32, "Q": 64}


def test_fields_lie_one_after_the_other_little_endian() -> None:
    layout = Structure("disable:B 3x count:I wide:Q")
    assert layout.size == 16
    assert layout.names == ("disable", "count", "wide")
    packed = layout.pack(disable=1, count=0x11223344, wide=0x0102030405060708)
    assert packed.hex() == "01000000443322110807060504030201"
    assert layout.unpack(packed) == {"disable": 1, "count": 0x11223344, "wide": 0x0102030405060708}


def test_nothing_is_aligned_by_itself() -> None:
    assert Structure("a:B b:Q").size == 9


def test_fields_not_given_are_zero_and_arrays_may_be_short() -> None:
    layout = Structure("n:I items:4H name:6s")
    assert layout.pack(items=[1, 2]).hex() == "00000000" + "0100020000000000" + "000000000000"
    assert layout.unpack(layout.pack(n=7, items=(1, 2), name=b"ab")) == {
        "n": 7,
        "items": (1, 2, 0, 0),
        "name": b"ab\0\0\0\0",
    }


def test_an_array_of_one_is_an_array() -> None:
    layout = Structure("items:1I")
    assert layout.unpack(layout.pack(items=[5])) == {"items": (5,)}


@pytest.mark.parametrize("spec", ["x", "a:", "a:3x", "a:Z", ":I", "a-b:I", "3I", "a:I,b:I", "a:I b"])
def test_a_bad_spec_is_refused(spec: str) -> None:
    if spec == "x":
        assert Structure(spec).size == 1  # a lone byte of padding is one
        return
    with pytest.raises(ValueError, match="bad field"):
        Structure(spec)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"m": 1}, "no field m"),
        ({"n": -1}, "does not fit"),
        ({"n": 1 << 32}, "does not fit"),
        ({"items": [1, 2, 3, 4, 5]}, "up to 4 values"),
        ({"items": [70000]}, "does not fit"),
        ({"items": 5}, "up to 4 values"),
        ({"name": b"seven.."}, "up to 6 values"),
        ({"n": [1]}, "one number"),
    ],
)
def test_a_bad_value_is_refused(values: dict[str, object], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        Structure("n:I items:4H name:6s").pack(**values)


@pytest.mark.parametrize("size", [0, 3, 5])
def test_unpack_takes_exactly_its_size(size: int) -> None:
    with pytest.raises(struct.error):
        Structure("n:I").unpack(bytes(size))


@st.composite
def _filled(draw: st.DrawFn) -> tuple[str, dict[str, object]]:
    tokens, values = [], {}
    for index in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["x", "s", *_BITS]))
        count = draw(st.integers(1, 6))
        if kind == "x":
            tokens.append(f"{count}x")
            continue
        name = f"field{index}"
        if kind == "s":
            tokens.append(f"{name}:{count}s")
            values[name] = draw(st.binary(min_size=count, max_size=count))
            continue
        number = st.integers(0, 2 ** _BITS[kind] - 1)
        if draw(st.booleans()):
            tokens.append(f"{name}:{count}{kind}")
            values[name] = tuple(draw(st.lists(number, min_size=count, max_size=count)))
        else:
            tokens.append(f"{name}:{kind}")
            values[name] = draw(number)
    return " ".join(tokens), values


@given(_filled())
def test_what_is_packed_is_unpacked(filled: tuple[str, dict[str, object]]) -> None:
    spec, values = filled
    layout = Structure(spec)
    packed = layout.pack(**values)
    assert len(packed) == layout.size
    assert layout.unpack(packed) == values
