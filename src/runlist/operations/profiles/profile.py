"""One profile."""

from __future__ import annotations

from dataclasses import dataclass

from runlist.operations.admission import Bound


@dataclass(frozen=True, slots=True)
class Profile:
    """What a kernel needs: `name` as in its module, SMs, and how long it takes."""

    name: str
    bound: Bound
    sms: int
    duration_ns: int
