"""How the background of a GPU gives way to its foreground, as a policy tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runlist.model.task import TaskKey


@dataclass(frozen=True, slots=True)
class GivingWay:
    """The `way` in force is one word: switch, request or slice, which is then of `slice_us`. `cost` is the part of the
    GPU that goes into switches, `budget` what it may be, `pauses_per_s` how often the foreground paused. `requests_s`
    says how long a request is, of the tasks that let that be seen.
    """

    way: str
    slice_us: int | None = None
    cost: float = 0.0
    budget: float = 0.0
    pauses_per_s: float = 0.0
    requests_s: Mapping[TaskKey, float] = field(default_factory=dict)
