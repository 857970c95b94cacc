"""Simulation: the same policy files as live, on a discrete-event model of GPUs, tenants and the daemon's controls.

`simulate` runs a trace under a policy; `load_trace` finds one by name or path.
"""

from runlist.sim.simulation import Outcome, simulate
from runlist.sim.traces import builtin_traces, load_trace
from runlist.sim.workload import Trace

__all__ = ["Outcome", "Trace", "builtin_traces", "load_trace", "simulate"]
