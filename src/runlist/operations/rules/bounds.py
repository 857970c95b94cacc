"""Options that several rules have: how far ahead of an idle client 0 the others may be, and for how long it rests."""

from __future__ import annotations

from dataclasses import replace

from runlist.operations.admission import AHEAD_NS, CLOSED, LONGEST_REST_NS, REST_NS, Admission
from runlist.policies.parts.options import number

BOUNDS = "ahead_us", "rest_us"


def take_closed(left: dict[str, str]) -> Admission:
    """Nothing beside a busy client 0, with the bounds that the options BOUNDS give, which are taken out. Raises
    ValueError with one clear line.
    """
    any_time = left.get("ahead_us") == "off" and left.pop("ahead_us") == "off"
    ahead_us = number(left, "ahead_us", AHEAD_NS / 1e3, 1, 1e9)
    rest_us = number(left, "rest_us", REST_NS / 1e3, 0, LONGEST_REST_NS / 1e3)
    return replace(CLOSED, ahead_ns=None if any_time else round(ahead_us * 1e3), rest_ns=round(rest_us * 1e3))
