"""Keeps client 0's p99 latency at a target, by feedback: lets more in beside it while it is well below, less above.

Options: `target_us` is the target, or `ratio` is, times the p99 that client 0 has with nobody beside it (default 1.25).
That one the rule measures itself: at first, and whenever it has closed, nothing goes beside client 0. It closes, too,
when requests with company take clearly less than they took alone.

There are 9 steps, from nothing over an eighth of the SMs and of the slack each to everything. The slack is what the
target leaves above what client 0 takes alone: what is in flight beside it may be expected to last a part of that. One
step up needs 100 requests since the last step, and their p99 at 0.9 of the target or less. Half the steps are given up
as soon as clearly more than one request in a hundred is late, which three late ones can show. The step that was too
high is not tried again for 2 s, then 4 s, up to 64 s, so that fewer and fewer requests are late by trying; the wait is
shorter again after a step has held for a while.

Of all steps but the last, what is in flight while client 0 is idle is bounded, too, and it counts as busy for a moment
after its work has ended (`ahead_us`, `rest_us`, as of `exclusive`): what it has alone would be wrong otherwise.

Where it fails: with fewer than some ten requests a second it learns slowly; a client 0 that never synchronises shows no
latencies at all, and then everything goes. Without profiles every kernel counts as nothing, and there is only open and
closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from math import sqrt

from runlist.operations.admission import ALL, ANY, OPEN, Admission
from runlist.operations.rules.bounds import BOUNDS, take_closed
from runlist.operations.rules.interface import Model, Rule
from runlist.policies.parts.options import no_more, number
from runlist.statistics import percentile

STEPS = 8
_ENOUGH = 100
_KEPT = 1000
_SKIPPED = 3
"""Requests after a change that what was in flight before may have delayed."""
_CALM = 0.9
_SHORTER = 0.8
"""Requests that have company, and take less than this part of what they took alone, have become others: it measures
them alone.
"""
_WAIT_S, _LONGEST_WAIT_S = 2.0, 64.0
_HELD = 500
"""After so many requests at a step that was too high once, it holds now."""
_STOPPED_S = 2.0
"""So long without a request: client 0 has stopped, or never synchronises."""
_LEAST_SLACK = 0.05


class P99(Rule):
    """A ladder of admissions, and where on it we are."""

    summary = "keeps client 0's p99 latency at a target, by feedback (options target_us, ratio, ahead_us, rest_us)"
    every_s = 0.25

    def __init__(self, options: Mapping[str, str]) -> None:
        left = dict(options)
        if {"target_us", "ratio"} <= left.keys():
            raise ValueError("target_us and ratio are two ways to say the same: give one")
        self._target_ns = number(left, "target_us", 0, 1e-3, 1e9) * 1e3
        self._ratio = 0.0 if self._target_ns else number(left, "ratio", 1.25, 1.01, 1000)
        self._closed = take_closed(left)
        no_more(left, "target_us", "ratio", *BOUNDS)
        self._step = 0
        self._alone_ns = 0.0
        self._window: deque[int] = deque(maxlen=_KEPT)
        self._skipped = 0
        self._held = 0
        self._too_high = STEPS + 1
        self._again_s = 0.0
        self._wait_s = _WAIT_S
        self._last_s: float | None = None
        self._launched = 0
        self._blind = False

    @property
    def step(self) -> int:
        """How much is let in: 0 nothing, STEPS everything."""
        return self._step

    def admission(self, model: Model) -> Admission:
        self._see(model)
        if not self._blind and self._window:
            self._decide(model.now_s)
        return self._answer(model.sms)

    def _see(self, model: Model) -> None:
        launched = model.clients[0].launched if model.clients else 0
        works, self._launched = launched != self._launched, launched
        if model.latencies_ns or self._last_s is None:
            self._last_s = model.now_s
            self._blind = False
        elif model.now_s - self._last_s > _STOPPED_S:
            self._blind = works
            if not works:  # what it does when it comes back may be something else
                self._forget()
                self._too_high, self._wait_s = STEPS + 1, _WAIT_S
        for latency in model.latencies_ns:
            if self._skipped < _SKIPPED:
                self._skipped += 1
            else:
                self._window.append(latency)
                self._held += 1

    def _decide(self, now_s: float) -> None:
        count = len(self._window)
        seen_ns = percentile(sorted(self._window), 99)
        if self._step == 0 and count >= _ENOUGH:
            self._alone_ns = seen_ns
        elif self._ratio and count >= _ENOUGH and seen_ns < _SHORTER * self._alone_ns:
            self._step = 0
            self._forget()
            return
        target_ns = self._target()
        if not target_ns:
            return
        late = sum(one > target_ns for one in self._window)
        usual = count / 100
        if self._step and late > usual + (2 if count == _KEPT else 2 + sqrt(usual)):
            self._down(now_s)
            return
        if self._step >= self._too_high and self._held >= _HELD and self._wait_s > _WAIT_S:
            self._wait_s, self._held = self._wait_s / 2, 0
        if count < _ENOUGH or self._step == STEPS:
            return
        calm_ns = target_ns if self._step == 0 else _CALM * target_ns
        if seen_ns <= calm_ns and (self._step + 1 < self._too_high or now_s >= self._again_s):
            self._step += 1
            self._forget()

    def _down(self, now_s: float) -> None:
        self._too_high = self._step
        self._again_s = now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
        self._step //= 2
        self._forget()

    def _forget(self) -> None:
        self._window.clear()
        self._skipped = self._held = 0

    def _target(self) -> float:
        return self._target_ns or self._ratio * self._alone_ns

    def _answer(self, sms: int) -> Admission:
        if self._blind or self._step == STEPS:
            return OPEN
        if self._step == 0:
            return self._closed
        target_ns = self._target()
        slack_ns = max(target_ns - self._alone_ns, _LEAST_SLACK * target_ns)
        return replace(
            self._closed,
            beside=ALL,
            sms=max(1, sms * self._step // STEPS) if sms else ANY,
            copies=True,
            gate_ns=round(slack_ns * self._step / STEPS),
        )

    def why(self) -> str:
        if self._blind:
            return "client 0 works and never synchronises: everything goes"
        if not self._target():
            return "measures client 0 alone"
        return f"step {self._step} of {STEPS}, target {self._target() / 1e3:.0f} µs"


RULE = P99
