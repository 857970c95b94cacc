"""The driver's controls for a context, beyond slices and suspension, one row each.

The driver does not tell the words in force, so undo sets its defaults.
"""

from __future__ import annotations

from collections.abc import Mapping

from runlist.planes.control import Control
from runlist.protocol import rm_autogen as rm
from runlist.protocol.rm_autogen import (
    PREEMPTION_SET_COMPUTE,
    SCHED_POLICY_RESTORE,
    Interleave,
    PreemptionMode,
    Privilege,
    SchedulingPolicy,
)  # fmt: skip

_PRIVILEGES = {name: privilege for name, _, _, privilege, *_ in rm.CONTROLS}


class RmControl(Control, frozen=True, kw_only=True):
    """A control that is one command of RM, sent for all channel groups or only those for `compute`. `params` are the
    command's parameters, by word.
    """

    command: str
    params: Mapping[str, Mapping[str, int]]
    compute: bool


def _row(
    name: str, command: str, params: Mapping[str, Mapping[str, int]], default: str, about: str, compute: bool = True
) -> RmControl:
    privileged = _PRIVILEGES[command] is not Privilege.NONE
    return RmControl(name, tuple(params), default, about, privileged, command=command, params=params, compute=compute)


CONTROLS = (
    _row("interleave", "SET_INTERLEAVE_LEVEL", {level.name.lower(): {"level": level} for level in Interleave},
         "low", "How often the runlist names its channel groups; no effect on latency was seen.", compute=False),
)  # fmt: skip
"""The controls that users are offered."""

_EXPERIMENTS = (
    _row("realtime", "MAKE_REALTIME", {"off": {"realtime": 0}, "on": {"realtime": 1}}, "off",
         "Measured to worsen latency. What it does to the other groups of the GPU outlives it: they go on yielding "
         "only at block boundaries until the preemption of each of them is set again."),
    _row("preemption", "SET_CTXSW_PREEMPTION_MODE",
         {mode.name.lower(): {"flags": PREEMPTION_SET_COMPUTE, "compute": mode} for mode in PreemptionMode}, "cilp",
         "Compute work may be interrupted at its end, at that of a block, or of an instruction. Changed while the work "
         "was being suspended and resumed, it left wrong numbers in the result (H200, driver 580)."),
    _row("scheduling-policy", "FIFO_RUNLIST_SET_SCHED_POLICY",
         {"driver": {"flags": SCHED_POLICY_RESTORE}, "default": {"policy": SchedulingPolicy.DEFAULT},
          "interleaved": {"policy": SchedulingPolicy.CHANNEL_INTERLEAVED},
          "wddm": {"policy": SchedulingPolicy.CHANNEL_INTERLEAVED_WDDM}},
         "driver", "The policy of all the GPU's runlists; with flags 1 this client no longer asks for one."),
)  # fmt: skip

ROWS = {row.name: row for row in (*CONTROLS, *_EXPERIMENTS)}
"""All, in the order in which they are undone."""
