"""True usage: who held a GPU and for how long, from the best source that this machine has.

`interface` says what a source tells; `switch_log` (exact, from the GPU's own log of context switches), `nvml` (coarse)
and `book` (what the daemon itself allowed) are the sources, in this order of preference; `choice` opens the best one.
"""

from runlist.usage.choice import Choice, open_source
from runlist.usage.interface import Held, Reading, Residency, UsageSource

__all__ = ["Choice", "Held", "Reading", "Residency", "UsageSource", "open_source"]
