"""One profile."""

from __future__ import annotations

from dataclasses import dataclass

from runlist.operations.admission import Bound

MOST_SMS = 1 << 16
LONGEST_NS = 1 << 40
"""What the library takes."""

MOST_KERNELS = 2048
"""So many the library knows."""

LONGEST_NAME = 1 << 16
"""Letters of a kernel's name."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a kernel needs: `name` as in its module, SMs, and how long it takes."""

    name: str
    bound: Bound
    sms: int
    duration_ns: int


def wrong(profile: Profile) -> str:
    """Why the library would not take it; empty where it would."""
    name: object = profile.name
    if not isinstance(name, str) or not name:
        return "a kernel without a name"
    if not name.isprintable():
        return f"the kernel's name {name[:80]!a} cannot be printed: name it as in its module"
    if len(name) > LONGEST_NAME:
        return f"a name of {len(name)} letters: take {LONGEST_NAME} at most"
    bound: object = profile.bound
    if not isinstance(bound, Bound):
        return f"bound by {bound!r}: take a Bound"
    number: object
    for number, unit, most in ((profile.sms, "SMs", MOST_SMS), (profile.duration_ns, "ns", LONGEST_NS)):
        if not isinstance(number, int) or not 0 <= number <= most:
            return f"{number!r} {unit}: take a whole number from 0 to {most}"
    return ""
