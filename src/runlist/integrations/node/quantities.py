"""Numbers as annotations have them. All raise ValueError with what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from runlist.units import MAX_SIZE

_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)(?:([KMGTP]i|[kMGTP])|[eE](\d{1,2}))?", re.ASCII)
_SCALES = {
    "": 1, "k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4, "P": 1000**5,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50,
}  # fmt: skip
_WHOLE = re.compile(r"\d{1,15}", re.ASCII)
_FRACTION = re.compile(r"\d{0,3}\.?\d{1,9}|\d{1,3}\.", re.ASCII)


def quantity(text: str) -> int:
    """Bytes of a Kubernetes quantity: 8Gi are 8 × 1024³ bytes, 8G are 8 × 1000³."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError("take a quantity, such as 8Gi or 8000M")
    return _possible(round(_number(match)))


def _number(match: re.Match[str]) -> Fraction:
    return Fraction(match[1]) * (10 ** int(match[3]) if match[3] else _SCALES[match[2] or ""])


def whole(text: str, what: str = "a whole number") -> int:
    """A number of 0 or more."""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"take {what}")
    return int(text)


def count(text: str, what: str = "a whole number") -> int:
    """A number as an API server writes it: 5k for 5000."""
    match = _QUANTITY.fullmatch(text)
    if match is None or (number := _number(match)).denominator != 1:
        raise ValueError(f"take {what}")
    return int(number)


def mebibytes(text: str, read: Callable[[str, str], int] = whole) -> int:
    """Bytes of a whole number of MiB."""
    return _possible(read(text, "a whole number of MiB") << 20)


def fraction(text: str) -> Fraction:
    """A part of a GPU: more than 0, and at most 1."""
    value = Fraction(text) if _FRACTION.fullmatch(text) is not None else Fraction(0)
    if not 0 < value <= 1:
        raise ValueError("take a part of a GPU, more than 0 and at most 1, such as 0.25")
    return value


def _possible(size: int) -> int:
    if not 0 < size <= MAX_SIZE:
        raise ValueError("no GPU has that much memory" if size else "take more than 0")
    return size
