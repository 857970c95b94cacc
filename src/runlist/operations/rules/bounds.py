"""Options that several rules have: how far ahead of an idle client 0 the others may be, and for how long it rests."""

from __future__ import annotations

from runlist.operations.admission import AHEAD_NS, REST_NS
from runlist.policies.parts.options import number


def take_bounds(left: dict[str, str]) -> tuple[int | None, int]:
    """`ahead_ns` and `rest_ns` of an admission, by the options `ahead_us` and `rest_us`, which are taken out. Raises
    ValueError with one clear line.
    """
    any_time = left.get("ahead_us") == "off" and left.pop("ahead_us") == "off"
    ahead_us = number(left, "ahead_us", AHEAD_NS / 1e3, 1, 1e9)
    rest_us = number(left, "rest_us", REST_NS / 1e3, 0, 1e6)
    return None if any_time else round(ahead_us * 1e3), round(rest_us * 1e3)
