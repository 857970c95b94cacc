"""What complements client 0's newest operation goes beside it (Orion, EuroSys'24), within two bounds.

Options: `gate` is the part of a request of client 0 that the others' kernels in flight may be expected to last together
(default 0.025; `gate=off`: any). A request's length is what a quarter of the newest ones took less than, since the
slower ones had company; `latency_us` gives it instead. `sms` is the most SMs of the others' kernels in flight (default:
any). Until 20 requests were seen there is no gate.

Both bounds count what profiles say: without profiles, all of this is `greedy`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from runlist.operations.admission import ANY, COMPLEMENTS, Admission
from runlist.operations.rules.interface import Model, Rule
from runlist.policies.parts.options import no_more, number
from runlist.statistics import percentile

_LEAST = 20
_KEPT = 1000
_STEP = 0.1
"""The gate stays as it is while it would change by less than this part."""


class Orion(Rule):
    """Always the same classes; the gate follows client 0's requests."""

    summary = (
        "what complements client 0: compute beside memory, within bounds of SMs and expected durations "
        "(options gate, sms, latency_us)"
    )
    every_s = 0.5

    def __init__(self, options: Mapping[str, str]) -> None:
        left = dict(options)
        off = left.get("gate") == "off" and left.pop("gate") == "off"
        self._gate = None if off else number(left, "gate", 0.025, 0, 100)
        sms = number(left, "sms", ANY, 0, ANY)
        if sms != round(sms):
            raise ValueError(f"sms={options['sms']} is no whole number")
        self._sms = round(sms)
        latency_us = number(left, "latency_us", 0, 1e-3, 1e9)
        self._request_ns = latency_us * 1e3
        self._measures = not latency_us
        no_more(left, "gate", "sms", "latency_us")
        self._latencies: deque[int] = deque(maxlen=_KEPT)

    def admission(self, model: Model) -> Admission:
        if self._measures:
            self._latencies.extend(model.latencies_ns)
            if len(self._latencies) >= _LEAST:
                seen = percentile(sorted(self._latencies), 25)
                if abs(seen - self._request_ns) > _STEP * self._request_ns:
                    self._request_ns = seen
        gate_ns = round(self._gate * self._request_ns) if self._gate is not None and self._request_ns else None
        return Admission(COMPLEMENTS, sms=self._sms, gate_ns=gate_ns)

    def why(self) -> str:
        return f"a request of client 0 takes {self._request_ns / 1e3:.0f} µs" if self._request_ns else ""


RULE = Orion
