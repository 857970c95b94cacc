"""What can be set in the driver for a context, beyond slices and suspension: one row a control.

The driver cannot be asked what is in force: undoing means its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from runlist.planes.interface import Control
from runlist.planes.nvidia.rm.commands import (
    COMMANDS,
    SCHED_POLICY_RESTORE,
    Command,
    Interleave,
    PreemptionMode,
    Privilege,
    SchedulingPolicy,
)


class SentTo(Enum):
    """What a control is sent to, once for each."""

    GROUPS = "every channel group"
    COMPUTE_GROUPS = "every compute group"
    COMPUTE_CHANNELS = "the subdevice, naming a channel of a compute group"
    GPU = "the subdevice"


@dataclass(frozen=True, slots=True, kw_only=True)
class RmControl(Control):
    """A control that is one command of RM. `params` are the command's parameters, by word."""

    command: Command
    sent_to: SentTo
    params: Mapping[str, Mapping[str, int]]


def _row(
    name: str, command: str, sent_to: SentTo, params: Mapping[str, Mapping[str, int]], default: str, about: str
) -> RmControl:
    sent = COMMANDS[command]
    privileged = sent.privilege is not Privilege.NONE
    return RmControl(name, tuple(params), default, about, privileged, command=sent, sent_to=sent_to, params=params)


INTERLEAVE = _row(
    "interleave",
    "SET_INTERLEAVE_LEVEL",
    SentTo.GROUPS,
    {level.name.lower(): {"level": level} for level in Interleave},
    default="low",
    about="How often the runlist names its channel groups; no effect on latency was seen.",
)
REALTIME = _row(
    "realtime",
    "MAKE_REALTIME",
    SentTo.COMPUTE_GROUPS,
    {"off": {"realtime": 0}, "on": {"realtime": 1}},
    default="off",
    about="Measured to worsen latency. What it does to the other groups of the GPU outlives it: they go on yielding "
    "only at block boundaries until the preemption of each of them is set again.",
)
PREEMPTION = _row(
    "preemption",
    "SET_CTXSW_PREEMPTION_MODE",
    SentTo.COMPUTE_CHANNELS,
    {mode.name.lower(): {"flags": 1, "compute": mode} for mode in PreemptionMode},
    default="cilp",
    about="Where compute work may be interrupted. Changed while the work was being suspended and resumed, it left "
    "wrong numbers in the result (H200, driver 580).",
)
SCHEDULING_POLICY = _row(
    "scheduling-policy",
    "FIFO_RUNLIST_SET_SCHED_POLICY",
    SentTo.GPU,
    {
        "driver": {"flags": SCHED_POLICY_RESTORE},
        **{policy.name.lower(): {"policy": policy} for policy in SchedulingPolicy},
    },
    default="driver",
    about="The policy of all the GPU's runlists.",
)

CONTROLS = (INTERLEAVE,)
"""What users are offered."""

ROWS = {row.name: row for row in (*CONTROLS, REALTIME, PREEMPTION, SCHEDULING_POLICY)}
"""These, and those for experiments, in the order in which they are undone."""
