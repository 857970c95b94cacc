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
    if not profile.name:
        return "a kernel without a name"
    if not profile.name.isprintable():
        return f"the kernel's name {profile.name[:80]!a} cannot be printed: name it as in its module"
    if len(profile.name) > LONGEST_NAME:
        return f"a name of {len(profile.name)} letters: take {LONGEST_NAME} at most"
    if not 0 <= profile.sms <= MOST_SMS:
        return f"{profile.sms} SMs: take a number from 0 to {MOST_SMS}"
    if not 0 <= profile.duration_ns <= LONGEST_NS:
        return f"{profile.duration_ns} ns: take a number from 0 to {LONGEST_NS}"
    return ""
