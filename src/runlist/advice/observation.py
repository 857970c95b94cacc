"""What is known of a task: the differences of two looks at it, and what was in force at the second."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from runlist.text import printable
from runlist.units import duration
from runlist.views.columns import percent
from runlist.views.structs import GpuView, TaskView

IDLE_BELOW = 0.002
"""A program that holds the GPU for a smaller part of the time, and submits nothing, does nothing."""
ENDLESS_FROM = 0.95
"""One that holds it for so much of the time leaves nothing."""
WAITS_FROM = 0.5
"""One that waits for the GPU in so much of its work is bound by it; in less, by its host."""


class Pattern(StrEnum):
    """What a program does on the GPU."""

    IDLE = "idle"
    ENDLESS = "never pauses"
    GPU_BOUND = "GPU-bound"
    HOST_BOUND = "host-bound"
    UNTOLD = "not told"


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """A task over `seconds`. `busy` is the part of the GPU that it had, `waits` the part of its own work in which it
    waited for the GPU; what is not known is None. `foreground`: the others give way to it, `gives_way` says how (empty:
    nobody does), at the cost of `switches_share` of the GPU, of `budget_share`. `turns_with` is with how many others it
    takes turns where somebody gives way, `idle` the part of all its time on the GPU in which that was idle.
    """

    pid: int
    gpu: str
    command: str
    task_class: str
    policy: str
    why: str
    enforcement: str
    seconds: float
    suspended: bool
    in_reach: bool
    capped: bool
    foreground: bool
    tells: bool
    busy: float | None
    pauses_per_s: float | None
    submissions_per_s: float | None
    waits: float | None
    request_us: float | None
    p99_us: float | None
    target_p99_us: float | None
    gives_way: str
    slice_us: int | None
    switches_share: float
    budget_share: float
    turns_with: int
    idle: float | None

    @property
    def pattern(self) -> Pattern:
        """What it does, as far as that shows."""
        if not self.submissions_per_s and (self.busy or 0.0) < IDLE_BELOW:
            return Pattern.IDLE
        if self.busy is not None and self.busy >= ENDLESS_FROM:
            return Pattern.ENDLESS
        if self.waits is None:
            return Pattern.UNTOLD
        return Pattern.GPU_BOUND if self.waits >= WAITS_FROM else Pattern.HOST_BOUND

    def words(self) -> dict[str, str]:
        """What sentences say of it."""
        there = "" if self.pauses_per_s is None or not self.gives_way else f", {self.pauses_per_s:.0f} pauses a second"
        return {
            "pid": str(self.pid),
            "class": self.task_class,
            "policy": printable(self.policy),
            "why": printable(self.why) or "nobody says why",
            "seconds": f"{self.seconds:.2g} s",
            "busy": "-" if self.busy is None else percent(self.busy),
            "pauses": there,
            "submissions": f"{self.submissions_per_s or 0.0:.0f}",
            "waits": _percent(self.waits),
            "request": _about(self.request_us),
            "p99": _about(self.p99_us),
            "target": _about(self.target_p99_us),
            "slice": "-" if self.slice_us is None else duration(round(self.slice_us, -2)),
            "cost": _percent(self.switches_share),
            "budget": _percent(self.budget_share),
            "others": "another one" if self.turns_with == 1 else f"{self.turns_with} others",
            "idle": _percent(self.idle),
            "not_loaded": printable(self.enforcement.removeprefix("not loaded: ")),
        }


def observe(
    before: TaskView, after: TaskView, gpu: GpuView | None, seconds: float, *, foreground: bool, turns_with: int = 0
) -> Observation:
    """What was seen of a task in so many seconds between two looks."""
    worked = after.gpu_seconds_worked - before.gpu_seconds_worked
    waited = _more(before.seconds_waited, after.seconds_waited)
    launching = _more(before.seconds_launching, after.seconds_launching)
    submissions = _more(before.submissions, after.submissions)
    own = (waited or 0.0) + (launching or 0.0)
    return Observation(
        pid=after.pid,
        gpu=after.gpu,
        command=after.command,
        task_class=after.task_class,
        policy=after.policy,
        why=after.why,
        enforcement=after.enforcement,
        seconds=seconds,
        suspended=after.suspended,
        in_reach=bool(after.reached_by),
        capped=after.cap_percent is not None,
        foreground=foreground,
        tells=after.submissions is not None,
        busy=min(1.0, max(0.0, worked / seconds)) if after.usage_source else None,
        pauses_per_s=(after.switches - before.switches) / seconds if after.switches else None,
        submissions_per_s=None if submissions is None else submissions / seconds,
        waits=None if waited is None or own <= 0 else waited / own,
        request_us=after.request_us,
        p99_us=after.p99_us,
        target_p99_us=after.target_p99_us,
        gives_way="" if gpu is None else gpu.gives_way,
        slice_us=None if gpu is None else gpu.gives_way_slice_us,
        switches_share=0.0 if gpu is None else gpu.switches_share or 0.0,
        budget_share=0.0 if gpu is None else gpu.switch_budget_share or 0.0,
        turns_with=turns_with,
        idle=after.gpu_seconds_idle / after.gpu_seconds_held if after.gpu_seconds_held > 0 else None,
    )


def _more(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.0f} %"


def _about(microseconds: float | None) -> str:
    """A time to two digits that count."""
    return "-" if microseconds is None else duration(float(f"{microseconds:.2g}"))
