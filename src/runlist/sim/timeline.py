"""Who had a simulated GPU at which moment: the record that pictures of turns are drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runlist.policies import PolicySpec
from runlist.sim.engine import Engine
from runlist.sim.gpu import Context, Gpu
from runlist.sim.machine import Machine
from runlist.sim.timing import SECOND
from runlist.sim.workload import Trace


class Doing(StrEnum):
    """What the GPU does in a span."""

    WORK = "work"  # of the tenant that has it, its restore included
    IDLE = "idle"  # the tenant that has it has nothing to do
    SWITCH = "switch"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Span:
    """From when until when (nanoseconds) the GPU did one thing, and for whom: empty for nobody."""

    begins: int
    ends: int
    tenant: str
    doing: Doing


class Watched(Gpu):
    """A GPU that notes all of its spans."""

    __slots__ = ("noted",)

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.noted: list[tuple[int, int, Context | None, Doing]] = []

    def settle(self) -> None:
        """Every change of who is there, and of whether there is work, comes here first."""
        begins, resident, switching = self._settled, self.resident, self._switching
        super().settle()
        if self._settled == begins:
            return
        if resident is not None:
            doing = Doing.WORK if resident.ready else Doing.IDLE
        else:
            doing = Doing.SWITCH if switching else Doing.EMPTY
        self.noted.append((begins, self._settled, resident, doing))


def timeline(trace: Trace, policy: PolicySpec, seconds: float, *, since: float = 0.0, seed: int = 1) -> list[Span]:
    """The spans of the first GPU of a trace from `since` until `seconds`, neighbours of one kind put together."""
    machine = Machine(trace, policy, 1, seconds, seed, make_gpu=Watched)
    machine.run()
    names = {tenant.context: tenant.spec.name for tenant in machine.tenants}
    gpu = machine.gpus[0].gpu
    assert isinstance(gpu, Watched)
    spans: list[Span] = []
    for begins, ends, context, doing in gpu.noted:
        if ends <= since * SECOND:
            continue
        tenant = "" if context is None else names[context]
        goes_on = bool(spans) and (spans[-1].tenant, spans[-1].doing) == (tenant, doing)
        spans.append(Span(spans.pop().begins if goes_on else begins, ends, tenant, doing))
    return spans
